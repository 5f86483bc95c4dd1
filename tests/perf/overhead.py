"""What the platform costs: output tokens a second through it, against a bare add_request/step loop.

    python -m tests.perf.overhead [--pairs 12] [--requests 2000] [--in-flight 32]

Both run the demo target on the openvino engine with the same requests, scheduler settings and
number of requests in flight, each in a process that stays loaded; one warm-up run each, then pairs
in random order. A figure is output tokens over (last token - first submission), loading excluded
on both sides. The bare loop knows the token ids beforehand; the platform reads, tokenizes,
decodes, checkpoints and serves meanwhile.

Walls are at the mercy of whoever else uses the machine: on a shared one the same loop differs by
half from one run to the next. So there are many pairs, and the median comes with its 90 % interval
(percentile bootstrap). The engine process's own CPU seconds a run are compared as well:
what the host does besides stepping shows there.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import batchgen.demo
from batchgen.chat.encoder import PromptEncoder
from batchgen.client import Client
from batchgen.client.upload import Upload
from batchgen.demo.orders import batch_line, held_out
from batchgen.domain.requests import ChatPrompt
from batchgen.local.credentials import read_credentials
from batchgen.local.detached import down, up_detached
from batchgen.settings import Settings

BAR, AIM = 0.95, 0.98
MODEL = Path(batchgen.demo.__file__).parent / "models" / "orders-qwen3-2m-ov"
SCHEDULER = {"max_num_batched_tokens": 2048, "num_kv_blocks": 2048, "enable_prefix_caching": True}


@dataclass(frozen=True, slots=True)
class Run:
    """Output tokens a second of wall, and the engine process's CPU seconds."""

    tok_s: float
    cpu_s: float


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class BareLoop:
    """The loop in a process of its own; each line in is a run, each line out its tokens a
    second.
    """

    def __init__(self, model: Path, requests: Path, in_flight: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.perf.bare_loop", model, requests, str(in_flight)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> Run:
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the bare loop has no pipes")
        before = _cpu_s(process.pid)
        process.stdin.write("run\n")
        process.stdin.flush()
        tok_s = float(process.stdout.readline())
        return Run(tok_s, _cpu_s(process.pid) - before)

    def close(self) -> None:
        self._process.communicate()


class Platform:
    """The whole service; each run is a job, its figure the job's own metric."""

    def __init__(self, client: Client, file_id: str, supervisor: int) -> None:
        self._client = client
        self._file_id = file_id
        self._supervisor = psutil.Process(supervisor)

    def _host(self) -> int | None:
        for process in self._supervisor.children(recursive=True):
            if "batchgen.engines.host" in process.cmdline():
                return process.pid
        return None

    def run(self) -> Run:
        host = self._host()
        before = 0.0 if host is None else _cpu_s(host)
        job = self._client.create_job({"input_file_id": self._file_id, "model": "demo"})
        pause = threading.Event()
        while job["state"] not in {"completed", "failed"}:
            pause.wait(1.0)
            job = self._client.job(job["id"])
        if job["state"] != "completed" or job["counts"]["failed"]:
            raise SystemExit(f"the job did not complete: {job['counts']}")
        metrics: dict[str, Any] = self._client.metrics(job["id"])
        spent = float("nan") if host is None else _cpu_s(host) - before
        return Run(float(metrics["values"]["output_tok_s"]["value"]), spent)


@contextmanager
def platform(lines: list[bytes], in_flight: int) -> Iterator[Platform]:
    with tempfile.TemporaryDirectory(prefix="batchgen-overhead-") as directory:
        settings = Settings(data_dir=Path(directory))
        state = up_detached(settings, port=0, device_names=["CPU"])
        try:
            found = read_credentials(settings)
            if found is None:
                raise SystemExit("the stack left no credentials")
            with Client(found.api_url, found.api_key) as client:
                spec = {
                    "engine": "openvino",
                    "path": str(MODEL),
                    "max_requests_per_process": None,
                    "scheduler_config": SCHEDULER | {"max_num_seqs": in_flight},
                }
                client.add_model({"name": "demo", "spec": spec})
                data = b"".join(lines)
                uploaded = client.upload(Upload("orders.jsonl", [data], len(data)))
                yield Platform(client, uploaded["id"], state.pid)
        finally:
            down(settings)


def interval(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    """The 90 % percentile-bootstrap interval of the median (Efron & Tibshirani, 1993)."""
    again = random.Random(0)
    medians = sorted(statistics.median(again.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[draws // 20], medians[-draws // 20]


def said(what: str, ratios: list[float]) -> str:
    low, high = interval(ratios)
    return f"{what} {statistics.median(ratios):.3f}, 90 % interval {low:.3f} to {high:.3f}"


def prompts(lines: list[bytes]) -> list[dict[str, Any]]:
    encoder = PromptEncoder(MODEL)
    out = []
    for line in lines:
        body = json.loads(line)["body"]
        ids = encoder.encode(ChatPrompt(tuple(body["messages"])))
        out.append({"ids": ids, "max_tokens": body["max_tokens"]})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=32)
    asked = parser.parse_args()
    lines = [
        json.dumps(batch_line(example, f"order-{number}")).encode() + b"\n"
        for number, example in enumerate(held_out(asked.requests))
    ]
    ratios: list[float] = []
    cpu: list[float] = []
    table = Table(title=f"output tok/s, {len(lines)} orders, {asked.in_flight} in flight")
    for heading in ("pair", "bare loop", "platform", "ratio", "engine CPU, s", "ratio"):
        table.add_column(heading, justify="right")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompts(lines), file)
        file.flush()
        bare = BareLoop(MODEL, Path(file.name), asked.in_flight)
        with platform(lines, asked.in_flight) as through:
            arms = {"bare": bare.run, "platform": through.run}
            for run in arms.values():
                run()
            for pair in range(1, asked.pairs + 1):
                order = random.sample(list(arms), k=2)
                got = {name: arms[name]() for name in order}
                one, other = got["bare"], got["platform"]
                ratios.append(other.tok_s / one.tok_s)
                cpu.append(one.cpu_s / other.cpu_s)
                print(f"pair {pair} of {asked.pairs}: {ratios[-1]:.3f}", file=sys.stderr)
                table.add_row(
                    str(pair),
                    f"{one.tok_s:,.0f}",
                    f"{other.tok_s:,.0f}",
                    f"{ratios[-1]:.3f}",
                    f"{one.cpu_s:.2f} / {other.cpu_s:.2f}",
                    f"{cpu[-1]:.3f}",
                )
        bare.close()
    console = Console()
    console.print(table)
    console.print(f"{said('median ratio', ratios)} (bar {BAR}, aim {AIM})")
    console.print(said("median ratio of engine CPU", cpu))
    if statistics.median(ratios) < BAR:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
