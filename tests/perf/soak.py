"""Whether memory stays flat over many requests on a real engine.

    python -m tests.perf.soak [--requests 20000] [--max-tokens 8] [--recycle N]

The whole service runs as `batchgen up` starts it; one job of customer orders of all lengths runs on
the demo model. Every thousand requests the resident memory of the engine host and of the device
worker is noted, each the largest of what was seen in that thousand. The engine's own measure
against growth is CPU_RUNTIME_CACHE_CAPACITY=0, which the openvino engine sets where nothing else is
asked; `--recycle` replaces the host after so many requests besides (default: never in this run).

The verdict compares the last quarter with the second: the first one warms up.
"""

import argparse
import itertools
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

import batchgen.demo
from batchgen.client import Client
from batchgen.client.upload import Upload
from batchgen.demo.orders import HELD_OUT_SEED, examples
from batchgen.local.credentials import read_credentials
from batchgen.local.detached import down, up_detached
from batchgen.settings import Settings
from tests.house import chat_line, jsonl

MODEL = Path(batchgen.demo.__file__).parent / "models" / "orders-qwen3-1m-ov"
_EVERY = 1_000
_SAMPLE_S = 0.5
_MIB = 2**20
# Of its size in the second quarter the host may have grown by so much in the last one.
_FLAT = 1.05


class Sizes:
    """The largest resident sets since the last look, in bytes."""

    def __init__(self, supervisor: int) -> None:
        self._root = psutil.Process(supervisor)
        self._largest = {"batchgen.engines.host": 0, "device": 0}
        self.hosts: set[int] = set()

    def sample(self) -> None:
        for process in self._root.children(recursive=True):
            try:
                command, size = process.cmdline(), process.memory_info().rss
            except psutil.Error:
                continue
            for word in self._largest:
                if word in command:
                    self._largest[word] = max(self._largest[word], size)
                    if word != "device":
                        self.hosts.add(process.pid)

    def look(self) -> tuple[int, int]:
        """(engine host, device worker)"""
        host, worker = self._largest.values()
        self._largest = dict.fromkeys(self._largest, 0)
        return host, worker


def chunks(n: int, max_tokens: int) -> Iterator[bytes]:
    """Orders with answers of one to `max_tokens` tokens, a thousand at a time."""
    chance = random.Random(0)
    orders = examples(HELD_OUT_SEED, "training")
    for start in range(0, n, _EVERY):
        yield jsonl(
            chat_line(
                f"r{start + i}",
                "",
                model="demo",
                messages=order.messages(),
                max_tokens=chance.randint(1, max_tokens),
                temperature=0,
            )
            for i, order in enumerate(itertools.islice(orders, min(_EVERY, n - start)))
        )


def run(n: int, max_tokens: int, recycle: int | None) -> bool:
    spec = {
        "engine": "openvino",
        "path": str(MODEL),
        "scheduler_config": {
            "max_num_seqs": 32,
            "num_kv_blocks": 1024,
            "enable_prefix_caching": True,
        },
        "max_requests_per_process": recycle,
    }
    with tempfile.TemporaryDirectory(prefix="batchgen-soak-") as directory:
        settings = Settings(data_dir=Path(directory))
        state = up_detached(settings, port=0, device_names=["CPU"])
        try:
            found = read_credentials(settings)
            if found is None:
                raise SystemExit("the stack left no credentials")
            with Client(found.api_url, found.api_key) as client:
                client.add_model({"name": "demo", "spec": spec})
                uploaded = client.upload(Upload("in.jsonl", chunks(n, max_tokens)))
                return watch(client, uploaded["id"], Sizes(state.pid))
        finally:
            down(settings)


def watch(client: Client, file_id: str, sizes: Sizes) -> bool:
    """Run the job and print the table; whether it ended well, with memory flat."""
    table = Table(title="a soak on the demo model")
    for heading in ("requests", "seconds", "engine host, MiB", "device worker, MiB"):
        table.add_column(heading, justify="right")
    began, mark = time.monotonic(), _EVERY
    hosts: list[int] = []
    workers: list[int] = []
    job = client.create_job({"input_file_id": file_id, "model": "demo"})
    pause = threading.Event()
    while job["state"] not in {"completed", "failed"}:
        pause.wait(_SAMPLE_S)
        sizes.sample()
        job = client.job(job["id"])
        done = job["counts"]["completed"] + job["counts"]["failed"]
        if done >= mark:
            host, worker = sizes.look()
            hosts.append(host)
            workers.append(worker)
            spent = time.monotonic() - began
            table.add_row(f"{done:,}", f"{spent:.0f}", f"{host / _MIB:.1f}", f"{worker / _MIB:.1f}")
            mark = done - done % _EVERY + _EVERY
    quarter = max(1, len(hosts) // 4)
    console = Console()
    console.print(table)
    ok = job["state"] == "completed" and not job["counts"]["failed"]
    console.print(f"{job['counts']}, {len(sizes.hosts)} engine hosts")
    for name, series in {"engine host": hosts, "device worker": workers}.items():
        second = statistics.mean(series[quarter : 2 * quarter])
        last = statistics.mean(series[-quarter:])
        growth = (last - second) / max(1, len(series) // 2) / _MIB
        console.print(
            f"{name}: last quarter / second quarter {last / second:.3f}, "
            f"{growth:+.2f} MiB a thousand requests"
        )
        ok = ok and last / second <= _FLAT
    console.print(f"flat: {'yes' if ok else 'NO'} (up to {_FLAT:.2f})")
    return ok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--recycle", type=int)
    asked = parser.parse_args()
    if asked.requests < 4 * _EVERY:
        parser.error(f"at least {4 * _EVERY:,} requests: the verdict compares quarters")
    if not run(asked.requests, asked.max_tokens, asked.recycle):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
