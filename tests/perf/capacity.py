"""How many requests a second the platform carries, and in how much memory, with an engine that
costs nothing.

    python -m tests.perf.capacity [--requests 100000]

The whole service runs as `batchgen up` starts it; the simulated engine answers at once, so what is
measured is ingest, claims, parsing, tokenizing, the pipe, records, segments, finalizing and the
download. Memory is the resident set of each process, sampled while the job runs, over the second
half against the first: flat is 1.0. Every custom_id is counted in the downloaded files.
"""

import argparse
import io
import itertools
import json
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from batchgen.client import Client
from batchgen.client.upload import Upload
from batchgen.local.credentials import read_credentials
from batchgen.local.detached import down, up_detached
from batchgen.settings import Settings
from tests.house import chat_line, jsonl

AIM_PER_S = 5_000.0
_SAMPLE_S = 0.25


class Memory:
    """Samples the resident sets of a stack's processes in a thread."""

    def __init__(self, supervisor: int) -> None:
        self._root = psutil.Process(supervisor)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: dict[str, list[int]] = defaultdict(list)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            for process in self._root.children(recursive=True):
                try:
                    name, size = _name(process.cmdline()), process.memory_info().rss
                except psutil.Error:
                    continue
                if name is not None:
                    self.samples[name].append(size)


def _name(command: list[str]) -> str | None:
    for word, name in {
        "batchgen.engines.host": "engine host",
        "device": "device worker",
        "control": "control worker",
        "uvicorn": "api",
    }.items():
        if any(word == part for part in command):
            return name
    return None


def chunks(n: int) -> Iterator[bytes]:
    for start in range(0, n, 1_000):
        lines = (
            chat_line(f"request-{i}", f"Summarise report number {i} in one sentence.")
            for i in range(start, min(n, start + 1_000))
        )
        yield jsonl(lines)


def run(n: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="batchgen-capacity-") as directory:
        settings = Settings(data_dir=Path(directory))
        state = up_detached(settings, port=0, device_names=["CPU"])
        try:
            found = read_credentials(settings)
            if found is None:
                raise SystemExit("the stack left no credentials")
            with Client(found.api_url, found.api_key) as client, Memory(state.pid) as memory:
                return report(client, memory, n)
        finally:
            down(settings)


def report(client: Client, memory: Memory, n: int) -> bool:
    client.add_model({"name": "sim", "spec": {"engine": "simulated"}})
    marks = {"start": time.monotonic()}
    uploaded = client.upload(Upload("in.jsonl", chunks(n)))
    marks["uploaded"] = time.monotonic()
    job = client.create_job({"input_file_id": uploaded["id"], "model": "sim"})
    pause = threading.Event()
    while job["state"] not in {"completed", "failed"}:
        pause.wait(0.1)
        job = client.job(job["id"])
        if job["in_progress_at"] is not None:
            marks.setdefault("sharded", time.monotonic())
    marks["completed"] = time.monotonic()
    seen: Counter[str] = Counter()
    for part in ("results", "errors"):
        out = io.BytesIO()
        client.download(job["id"], part, out)
        seen.update(json.loads(line)["custom_id"] for line in out.getvalue().splitlines())
    marks["downloaded"] = time.monotonic()

    times = Table(title=f"{n:,} requests through the whole service")
    for heading in ("step", "seconds", "requests/s"):
        times.add_column(heading, justify="left" if heading == "step" else "right")
    names = list(marks)
    for before, after in itertools.pairwise(names):
        spent = marks[after] - marks[before]
        times.add_row(after, f"{spent:.2f}", f"{n / spent:,.0f}")
    whole = marks["completed"] - marks["uploaded"]
    times.add_row("submitted to completed", f"{whole:.2f}", f"{n / whole:,.0f}")
    sizes = Table(title="resident memory, MiB")
    for heading in ("process", "first", "largest", "second half / first half"):
        sizes.add_column(heading, justify="left" if heading == "process" else "right")
    for name, samples in sorted(memory.samples.items()):
        half = max(1, len(samples) // 2)
        late = sum(samples[half:]) / max(1, len(samples) - half)
        early = sum(samples[:half]) / half
        sizes.add_row(
            name, *(f"{v / 2**20:.0f}" for v in (samples[0], max(samples))), f"{late / early:.2f}"
        )
    once = seen == Counter(f"request-{i}" for i in range(n))
    console = Console()
    console.print(times, sizes)
    console.print(f"every request exactly once in the files: {'yes' if once else 'NO'}")
    console.print(
        f"aim {AIM_PER_S:,.0f} requests/s: {'met' if n / whole >= AIM_PER_S else 'missed'}"
    )
    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    if not run(parser.parse_args().requests):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
