"""How well a model reads held-out orders: exact match, greedy, from the shipped files.

The safetensors run through transformers, the IR through openvino-genai's continuous batching, both
fed with token ids: two independent readers of the same prompts.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from batchgen.demo.orders import MAX_TOKENS, Example, Score, held_out, score
from batchgen.demo.recipe.batches import instruction_ids, prompt_ids
from batchgen.demo.recipe.tokenizer import END_OF_TEXT, END_OF_TURN, token_id

EVALUATED_ORDERS = 500
_ROWS_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One row of the table."""

    model: str
    form: str
    instructed: bool
    score: Score
    tokens: int
    seconds: float

    def row(self) -> str:
        """As a line of a Markdown table, see `HEADER`."""
        return (
            f"| {self.model} | {self.form} | {'yes' if self.instructed else 'no'} "
            f"| {self.score.exact} of {self.score.total} ({self.score.exact_share:.1%}) "
            f"| {self.score.wrong} | {self.score.unparsed} "
            f"| {self.tokens / self.seconds:,.0f} |"
        )


HEADER = (
    "| model | form | instruction | exact | wrong | unparsed | output tok/s |\n"
    "|---|---|---|---|---|---|---|"
)


def evaluate_checkpoint(directory: Path, *, instructed: bool = True) -> Evaluation:
    """Answers of the safetensors in float32, by transformers."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    pad = token_id(tokenizer, END_OF_TEXT)
    chosen = held_out(EVALUATED_ORDERS)
    prompts = [_prompt(tokenizer, example, instructed=instructed) for example in chosen]
    answers: list[list[int]] = []
    started = time.perf_counter()
    for first in range(0, len(prompts), _ROWS_AT_ONCE):
        rows = prompts[first : first + _ROWS_AT_ONCE]
        width = max(map(len, rows))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=(ids != pad).long(), max_new_tokens=MAX_TOKENS, do_sample=False
            )
        answers += [_without_padding(row[width:], pad) for row in output.tolist()]
    seconds = time.perf_counter() - started
    return _evaluation(
        directory, "safetensors fp16", tokenizer, answers, seconds=seconds, instructed=instructed
    )


def evaluate_ir(directory: Path, *, instructed: bool = True) -> Evaluation:
    """Answers of the IR on the CPU, all orders in flight at once."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    scheduling = genai.SchedulerConfig()
    scheduling.cache_size = 1
    scheduling.enable_prefix_caching = True
    pipeline = genai.ContinuousBatchingPipeline(str(directory), scheduling, "CPU", {})
    config = genai.GenerationConfig(max_new_tokens=MAX_TOKENS, do_sample=False)
    config.set_eos_token_id(token_id(tokenizer, END_OF_TURN))
    chosen = held_out(EVALUATED_ORDERS)
    started = time.perf_counter()
    handles = []
    for number, example in enumerate(chosen):
        ids = np.array([_prompt(tokenizer, example, instructed=instructed)], dtype=np.int64)
        handles.append(pipeline.add_request(number, ov.Tensor(ids), config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    seconds = time.perf_counter() - started
    # read_all() blocks for ever where there is nothing to read, so ask first.
    answers = [
        handle.read_all()[0].generated_ids if handle.can_read() else [] for handle in handles
    ]
    return _evaluation(
        directory, "OpenVINO int8", tokenizer, answers, seconds=seconds, instructed=instructed
    )


def _prompt(tokenizer: Tokenizer, example: Example, *, instructed: bool) -> list[int]:
    instruction = instruction_ids(tokenizer) if instructed else []
    return instruction + prompt_ids(tokenizer, example.message)


def _without_padding(ids: list[int], pad: int) -> list[int]:
    return ids[: ids.index(pad)] if pad in ids else ids


def _evaluation(
    directory: Path,
    form: str,
    tokenizer: Tokenizer,
    answers: Sequence[Sequence[int]],
    *,
    seconds: float,
    instructed: bool,
) -> Evaluation:
    end = token_id(tokenizer, END_OF_TURN)
    finished = [list(ids[: list(ids).index(end)]) if end in ids else [] for ids in answers]
    texts = {str(number): tokenizer.decode(ids) for number, ids in enumerate(finished)}
    expected = {str(n): e.order.to_dict() for n, e in enumerate(held_out(EVALUATED_ORDERS))}
    name = directory.name.removesuffix("-ov")
    tokens = sum(len(ids) for ids in answers)
    return Evaluation(name, form, instructed, score(texts, expected), tokens, seconds)
