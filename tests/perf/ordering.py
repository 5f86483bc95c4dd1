"""What it brings that lines which begin alike run together, and long ones early.

    python -m tests.perf.ordering [--instructions 64] [--each 8] [--rounds 3] [--only JOB]

The whole service runs as `batchgen up` starts it, and the same jobs run with `ordering` `input` and
`prefix`, in pairs of random order; a row is the median of its rounds. The jobs:

* `interleaved`: orders that take turns with many instructions, on the demo model with a KV cache
  that holds the requests in flight and a part of the instructions only;
* `one instruction`: as many orders with one and the same instruction, on the same engine: nothing
  to be gained, so what does ordering cost;
* `interleaved, simulated`: the first on the simulated engine;
* `long ones last, simulated`: short requests with a few long ones at the end of the input.

The simulated engine tells the tokens that it had cached. openvino-genai does not: its rate is
computed, by going through the run's own admissions and ends with a cache of that size in which the
block longest unused goes first. What was saved in truth shows in the engine's CPU seconds. TTFT is
from the admission on. `worker` is the CPU time of the device worker, which reads and orders.
"""

import argparse
import io
import json
import random
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import batchgen.demo
from batchgen.chat.encoder import PromptEncoder
from batchgen.client import Client
from batchgen.client.upload import Upload
from batchgen.domain.jobs import Ordering
from batchgen.domain.requests import ChatPrompt
from batchgen.engines.simulated.block_pool import BlockPool, Held
from batchgen.local.credentials import read_credentials
from batchgen.local.detached import down, up_detached
from batchgen.settings import Settings
from tests.house import chat_line, jsonl

MODEL = Path(batchgen.demo.__file__).parent / "models" / "orders-qwen3-2m-ov"
ORDERS = Path(__file__).parents[2] / "examples" / "orders-500.jsonl"
IN_FLIGHT, KV_BLOCKS = 16, 320
KV_BLOCK_TOKENS = 32  # on a CPU
SPECS: dict[str, dict[str, Any]] = {
    "demo": {
        "engine": "openvino",
        "path": str(MODEL),
        "scheduler_config": {
            "max_num_batched_tokens": 2048,
            "num_kv_blocks": KV_BLOCKS,
            "max_num_seqs": IN_FLIGHT,
            "enable_prefix_caching": True,
        },
    },
    "simulated": {
        "engine": "simulated",
        "path": str(MODEL),
        "max_num_seqs": IN_FLIGHT,
        "kv_blocks": 2 * KV_BLOCKS,  # they are half as long
        "enable_prefix_caching": True,
        "step_s": 0.002,
        "step_s_per_seq": 0.0001,
        "prefill_tok_s": 40_000,
        "rules": [{"contains": "report", "action": "answer", "text": "order " * 1_500}],
    },
}
Lines = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Run:
    """One job. Rates are a second, CPU times milliseconds a request."""

    hit_rate: float
    ttft_ms: float
    ttft_p95_ms: float
    tok_s: float
    makespan_s: float
    engine_ms: float
    worker_ms: float


def interleaved(instructions: int, each: int) -> Lines:
    orders = [json.loads(line)["body"] for line in ORDERS.read_bytes().splitlines()]
    out = []
    for i, body in enumerate(islice(cycle(orders), instructions * each)):
        system, user = body["messages"]
        words = f"You work at desk {i % instructions} of {instructions}. {system['content']}"
        messages = [{**system, "content": words}, user]
        out.append(asked(f"r{i}", messages, body["max_tokens"]))
    return out


def asked(custom_id: str, messages: list[dict[str, Any]], max_tokens: int) -> dict[str, Any]:
    line = chat_line(custom_id, "", max_tokens=max_tokens, temperature=0, messages=messages)
    del line["body"]["model"]
    return line


def long_ones_last(n: int) -> Lines:
    """Two get 75 times the tokens of the others, and ask for so many."""
    short = n - 2
    out = [asked(f"r{i}", [{"role": "user", "content": "An order."}], 20) for i in range(short)]
    essay = [{"role": "user", "content": "A report on orders."}]
    return out + [asked(f"r{i}", essay, 1_500) for i in range(short, n)]


class Service:
    """The stack, its processes, and jobs on it."""

    def __init__(self, client: Client, supervisor: int) -> None:
        self._client = client
        self._root = psutil.Process(supervisor)
        for name, spec in SPECS.items():
            client.add_model({"name": name, "spec": spec})

    def upload(self, lines: Lines) -> str:
        data = jsonl(lines)
        return str(self._client.upload(Upload("in.jsonl", [data], len(data)))["id"])

    def run(self, file_id: str, model: str, ordering: Ordering) -> tuple[Run, list[dict[str, Any]]]:
        """The job's figures and its timing lines."""
        before = self._cpu_s("batchgen.engines.host"), self._cpu_s("device")
        job = self._client.create_job(
            {"input_file_id": file_id, "model": model, "ordering": ordering}
        )
        pause = threading.Event()
        while job["state"] not in {"completed", "failed"}:
            pause.wait(0.5)
            job = self._client.job(job["id"])
        n = job["counts"]["completed"]
        if job["state"] != "completed" or n != job["counts"]["total"]:
            raise SystemExit(f"the job did not complete: {job['counts']}")
        after = self._cpu_s("batchgen.engines.host"), self._cpu_s("device")
        engine_ms, worker_ms = ((b - a) * 1e3 / n for a, b in zip(before, after, strict=True))
        metrics = self._client.metrics(job["id"])
        values, ttft = metrics["values"], metrics["distributions"]["ttft_ms"]
        out = io.BytesIO()
        self._client.download(job["id"], "timings", out)
        run = Run(
            hit_rate=values["prefix_hit_rate"]["value"] or 0.0,
            ttft_ms=ttft["p50"],
            ttft_p95_ms=ttft["p95"],
            tok_s=values["output_tok_s"]["value"],
            makespan_s=values["makespan_s"]["value"],
            engine_ms=engine_ms,
            worker_ms=worker_ms,
        )
        return run, [json.loads(line) for line in out.getvalue().splitlines()]

    def _cpu_s(self, word: str) -> float:
        total = 0.0
        for process in self._root.children(recursive=True):
            if word in process.cmdline():
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextmanager
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="batchgen-ordering-") as directory:
        settings = Settings(data_dir=Path(directory))
        state = up_detached(settings, port=0, device_names=["CPU"])
        try:
            found = read_credentials(settings)
            if found is None:
                raise SystemExit("the stack left no credentials")
            with Client(found.api_url, found.api_key) as client:
                yield Service(client, state.pid)
        finally:
            down(settings)


def computed_hit_rate(lines: Lines, timings: list[dict[str, Any]]) -> float:
    """Of a cache of `KV_BLOCKS`, from when each request was admitted and ended."""
    encoder = PromptEncoder(MODEL)
    prompts = {
        line["custom_id"]: encoder.encode(ChatPrompt(tuple(line["body"]["messages"])))
        for line in lines
    }
    events = [(t["t_adm"], 1, t) for t in timings] + [(t["t_last"], 0, t) for t in timings]
    pool = BlockPool(KV_BLOCKS, caches=True, block_tokens=KV_BLOCK_TOKENS)
    held: dict[str, Held | None] = {}
    cached = total = 0
    for _, begins, timing in sorted(events, key=lambda event: event[:2]):
        name = timing["custom_id"]
        if begins:
            blocks = -(-(timing["n_in"] + timing["n_out"]) // KV_BLOCK_TOKENS)
            held[name] = got = pool.take(prompts[name], blocks)
            cached += 0 if got is None else got.cached_tokens
            total += timing["n_in"]
        elif (left := held[name]) is not None:
            pool.give_back(left)
    return cached / total


def row(table: Table, name: str, ordering: str, runs: list[Run], rates: list[float]) -> None:
    """`rates` are computed hit rates, none where the engine tells its own."""

    def median(field: str) -> float:
        return statistics.median(float(getattr(run, field)) for run in runs)

    table.add_row(
        name,
        ordering,
        f"{statistics.median(rates):.1%}*" if rates else f"{median('hit_rate'):.1%}",
        f"{median('ttft_ms'):.1f}",
        f"{median('ttft_p95_ms'):.1f}",
        f"{median('tok_s'):,.0f}",
        f"{median('makespan_s'):.2f}",
        f"{median('engine_ms'):.2f}",
        f"{median('worker_ms'):.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", type=int, default=64)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="the jobs with this in their name")
    wanted = parser.parse_args()
    n = wanted.instructions * wanted.each
    turns = interleaved(wanted.instructions, wanted.each)
    jobs: dict[str, tuple[str, Lines]] = {
        "interleaved": ("demo", turns),
        "one instruction": ("demo", interleaved(1, n)),
        "interleaved, simulated": ("simulated", turns),
        "long ones last, simulated": ("simulated", long_ones_last(n)),
    }
    table = Table(title=f"{n} requests, {wanted.instructions} instructions, {IN_FLIGHT} in flight")
    for heading in ("job", "ordering"):
        table.add_column(heading)
    for heading in (
        "prefix hits",
        "TTFT p50, ms",
        "p95",
        "output tok/s",
        "makespan, s",
        "engine CPU, ms/req",
        "worker CPU, ms/req",
    ):
        table.add_column(heading, justify="right")
    with service() as here:
        for name, (model, lines) in jobs.items():
            if wanted.only not in name:
                continue
            file_id = here.upload(lines)
            here.run(here.upload(lines[:IN_FLIGHT]), model, Ordering.INPUT)  # loads the engine
            runs: dict[Ordering, list[Run]] = {Ordering.INPUT: [], Ordering.PREFIX: []}
            rates: dict[Ordering, list[float]] = {Ordering.INPUT: [], Ordering.PREFIX: []}
            for _ in range(wanted.rounds):
                for ordering in random.sample(list(runs), k=2):
                    run, timings = here.run(file_id, model, ordering)
                    runs[ordering].append(run)
                    if model == "demo":
                        rates[ordering].append(computed_hit_rate(lines, timings))
            for ordering, of in runs.items():
                row(table, name, ordering, of, rates[ordering])
            table.add_section()
    console = Console(width=130)
    console.print(table)
    console.print("* computed: the engine does not tell")


if __name__ == "__main__":
    main()
