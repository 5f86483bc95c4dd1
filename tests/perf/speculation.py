"""What speculation brings on the demo models: speed, acceptance, and whether the text stays.

    python -m tests.perf.speculation [--orders 64] [--rounds 3] [--in-flight 32] [--made-up]

One engine is loaded after the other, in this process: plain, a draft model that proposes 1 to 8
tokens, and prompt lookup, each with a KV cache of u8 and of f16. A row's speed is its output tokens
a second against the plain engine of the same precision, both of them run in turns (`--rounds`, the
median of the ratios). `accepted` is the share of proposed tokens; a lookup does not tell how many
it proposed. `tokens/step` is what a request got from a step, at least: its last step is not
counted. `exact` is how many answers are the plain engine's, token by token, in the same precision.
The plain rows are the engine against itself. `--made-up` takes orders with names that the draft has
not seen.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

import batchgen.demo
from batchgen.chat.encoder import PromptEncoder
from batchgen.demo.orders import HELD_OUT_SEED, MAX_TOKENS, examples
from batchgen.domain.outcomes import Generation
from batchgen.domain.requests import ChatPrompt, SamplingParams
from batchgen.engines.openvino.engine import OpenVinoEngine
from batchgen.engines.protocol import EngineRequest
from batchgen.engines.spec import DraftModel, OpenVinoSpec, PromptLookup, SchedulerSettings

MODELS = Path(batchgen.demo.__file__).parent / "models"
TARGET, DRAFT = MODELS / "orders-qwen3-2m-ov", MODELS / "orders-qwen3-1m-ov"
SAMPLING = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)

Precision = Literal["u8", "f16"]


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over all orders."""

    answers: tuple[tuple[int, ...], ...]
    seconds: float
    drafted: int | None
    accepted: int

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


class Arm:
    """A loaded engine that runs the orders again and again."""

    def __init__(self, spec: OpenVinoSpec, prompts: list[list[int]]) -> None:
        self._engine = OpenVinoEngine()
        self._engine.load(spec)
        self._prompts = prompts
        self._next_id = 0

    def run(self) -> Run:
        first = self._next_id
        self._next_id += len(self._prompts)
        began = time.monotonic()
        ended = self._engine.submit(
            [EngineRequest(first + i, ids, SAMPLING) for i, ids in enumerate(self._prompts)]
        )
        while self._engine.has_work():
            self._engine.schedule()
            ended += self._engine.step()
        seconds = time.monotonic() - began
        made: list[Generation] = []
        for finished in sorted(ended, key=lambda f: f.id):
            if finished.generation is None:
                raise SystemExit(f"a request failed: {finished.failure}")
            made.append(finished.generation)
        drafted = [g.n_drafted for g in made if g.n_drafted is not None]
        return Run(
            answers=tuple(generation.choices[0].token_ids for generation in made),
            seconds=seconds,
            drafted=sum(drafted) if drafted else None,
            accepted=sum(generation.n_accepted or 0 for generation in made),
        )

    def close(self) -> None:
        self._engine.close()


def specs(precision: Precision, in_flight: int) -> dict[str, OpenVinoSpec]:
    def spec(
        draft: DraftModel | None = None, prompt_lookup: PromptLookup | None = None
    ) -> OpenVinoSpec:
        return OpenVinoSpec(
            path=str(TARGET),
            device="CPU",
            kv_cache_precision=precision,
            scheduler_config=SchedulerSettings(
                max_num_batched_tokens=16_384, max_num_seqs=in_flight, num_kv_blocks=1024
            ),
            draft=draft,
            prompt_lookup=prompt_lookup,
        )

    drafts = {
        f"draft, {n}": spec(DraftModel(path=str(DRAFT), num_assistant_tokens=n))
        for n in range(1, 9)
    }
    lookups = {
        f"lookup, {n}": spec(prompt_lookup=PromptLookup(num_assistant_tokens=n)) for n in (2, 4, 8)
    }
    return {"plain": spec(), **drafts, **lookups}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--made-up", action="store_true")
    asked = parser.parse_args()
    encoder = PromptEncoder(TARGET)
    chosen = examples(HELD_OUT_SEED, "held-out", made_up_share=1.0 if asked.made_up else 0.0)
    prompts = [
        encoder.encode(ChatPrompt(tuple(example.messages())))
        for example in islice(chosen, asked.orders)
    ]
    table = Table(title=f"speculation, {asked.orders} orders, {asked.in_flight} in flight")
    table.add_column("speculation")
    for heading in ("KV", "speed", "drafted", "accepted", "tokens/step", "exact"):
        table.add_column(heading, justify="right")
    precisions: tuple[Precision, ...] = ("u8", "f16")
    for precision in precisions:
        arms = specs(precision, asked.in_flight)
        plain = Arm(arms["plain"], prompts)
        reference = plain.run()
        for name, spec in arms.items():
            arm = Arm(spec, prompts)
            got = arm.run()
            ratios = []
            for _ in range(asked.rounds):
                before = plain.run().tok_s
                ratios.append(arm.run().tok_s / before)
            arm.close()
            same = sum(a == b for a, b in zip(got.answers, reference.answers, strict=True))
            table.add_row(
                name,
                precision,
                f"{statistics.median(ratios):.2f}",
                "-" if got.drafted is None else f"{got.drafted:,}",
                "-" if not got.drafted else f"{got.accepted / got.drafted:.0%}",
                f"{got.tokens / (got.tokens - got.accepted):.2f}",
                f"{same} of {len(prompts)}",
            )
        plain.close()
    Console().print(table)


if __name__ == "__main__":
    main()
