"""How long `batchgen up` takes, cold and warm, and how long its end takes.

    python -m tests.perf.startup [--repeats 3]

Cold is an empty data directory, warm the same one again after a clean stop. The time runs from the
call that starts the background process to the moment when every part is ready; the steps are the
stack's own account, and some of them run side by side.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from batchgen.local.detached import down, up_detached
from batchgen.settings import Settings

LIMITS_S = {"cold": 15.0, "warm": 5.0, "stop": 10.0}

Samples = dict[str, dict[str, list[float]]]


def note(samples: Samples, kind: str, step: str, seconds: float) -> None:
    samples.setdefault(step, {}).setdefault(kind, []).append(seconds)


def one_round(samples: Samples) -> None:
    with tempfile.TemporaryDirectory(prefix="batchgen-startup-") as directory:
        settings = Settings(data_dir=Path(directory) / "data")
        for kind in ("cold", "warm"):
            began = time.monotonic()
            state = up_detached(settings, port=0)
            note(samples, kind, "to ready", time.monotonic() - began)
            for step, seconds in state.phases.items():
                note(samples, kind, step, seconds)
            began = time.monotonic()
            down(settings)
            note(samples, kind, "to stop", time.monotonic() - began)


def table_of(samples: Samples, repeats: int) -> Table:
    table = Table(title=f"batchgen up: seconds, median (worst) of {repeats}")
    for heading in ("step", "cold", "warm"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    for step, kinds in samples.items():
        cells = [
            f"{statistics.median(values):.2f} ({max(values):.2f})" if values else "-"
            for values in (kinds.get("cold", []), kinds.get("warm", []))
        ]
        table.add_row(step, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    samples: Samples = {}
    for _ in range(repeats):
        one_round(samples)
    Console().print(table_of(samples, repeats))
    slow = [
        f"{kind} start: {max(samples['to ready'][kind]):.1f} s, {LIMITS_S[kind]:.0f} allowed"
        for kind in ("cold", "warm")
        if max(samples["to ready"][kind]) > LIMITS_S[kind]
    ]
    slow += [
        f"stop: {max(values):.1f} s, {LIMITS_S['stop']:.0f} allowed"
        for values in samples["to stop"].values()
        if max(values) > LIMITS_S["stop"]
    ]
    if slow:
        raise SystemExit("; ".join(slow))


if __name__ == "__main__":
    main()
