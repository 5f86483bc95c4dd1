"""How well a model reads held-out orders: exact match, greedy, from the shipped files.

The safetensors run through transformers, the IR through openvino-genai's continuous batching, both
fed with token ids: two independent readers of the same prompts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import openvino as ov
import openvino_genai as genai
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from batchgen.demo.orders import MAX_TOKENS, Example, Score, held_out, score
from batchgen.demo.recipe.batches import instruction_ids, prompt_ids
from batchgen.demo.recipe.tokenizer import END_OF_TEXT, END_OF_TURN, token_id
from batchgen.demo.words import made_up

EVALUATED_ORDERS = 500
HEADER = "| model | form | prompts | exact | wrong | unparsed |\n|---|---|---|---|---|---|"

_ROWS_AT_ONCE = 50

Prompts = Literal["held-out", "held-out, no instruction", "made-up customers"]
"""`made-up customers` swaps the customers for new names, of other pieces than the known words."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One row of the table."""

    model: str
    form: str
    prompts: Prompts
    score: Score

    def row(self) -> str:
        """As a line of a Markdown table, see `HEADER`."""
        return (
            f"| {self.model} | {self.form} | {self.prompts} "
            f"| {self.score.exact} of {self.score.total} ({self.score.exact_share:.1%}) "
            f"| {self.score.wrong} | {self.score.unparsed} |"
        )


@dataclass(frozen=True, slots=True)
class Task:
    """The examples of one kind of prompts and their token ids."""

    prompts: Prompts
    examples: list[Example]
    ids: list[list[int]]

    @classmethod
    def of(cls, prompts: Prompts, tokenizer: Tokenizer) -> "Task":
        """The first held-out orders, prepared as `prompts` says."""
        chosen = held_out(EVALUATED_ORDERS)
        if prompts == "made-up customers":
            rng = random.Random(0)
            chosen = [_with_made_up_customer(example, rng) for example in chosen]
        prefix = [] if prompts == "held-out, no instruction" else instruction_ids(tokenizer)
        ids = [prefix + prompt_ids(tokenizer, example.message) for example in chosen]
        return cls(prompts, chosen, ids)


def evaluate_checkpoint(directory: Path, prompts: Prompts) -> Evaluation:
    """Answers of the safetensors in float32, by transformers, a few dozen orders at a time."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    task = Task.of(prompts, tokenizer)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    pad = token_id(tokenizer, END_OF_TEXT)
    answers: list[list[int]] = []
    for first in range(0, len(task.ids), _ROWS_AT_ONCE):
        rows = task.ids[first : first + _ROWS_AT_ONCE]
        width = max(map(len, rows))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=(ids != pad).long(), max_new_tokens=MAX_TOKENS, do_sample=False
            )
        answers += [_without_padding(row[width:], pad) for row in output.tolist()]
    return _evaluation(directory, "safetensors fp16", task, answers)


def evaluate_ir(directory: Path, prompts: Prompts) -> Evaluation:
    """Answers of the IR on the CPU, all orders in flight at once."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    task = Task.of(prompts, tokenizer)
    scheduling = genai.SchedulerConfig()
    scheduling.cache_size = 1
    scheduling.enable_prefix_caching = True
    pipeline = genai.ContinuousBatchingPipeline(str(directory), scheduling, "CPU", {})
    config = genai.GenerationConfig(max_new_tokens=MAX_TOKENS, do_sample=False)
    config.set_eos_token_id(token_id(tokenizer, END_OF_TURN))
    handles = [
        pipeline.add_request(number, ov.Tensor(np.array([ids], dtype=np.int64)), config)
        for number, ids in enumerate(task.ids)
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    # read_all() blocks for ever where there is nothing to read, so ask first.
    answers = [
        handle.read_all()[0].generated_ids if handle.can_read() else [] for handle in handles
    ]
    return _evaluation(directory, "OpenVINO int8", task, answers)


def _evaluation(
    directory: Path, form: str, task: Task, answers: Sequence[Sequence[int]]
) -> Evaluation:
    """Score the answers; one that was cut off before its end counts as unparsed."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    end = token_id(tokenizer, END_OF_TURN)
    texts = {
        str(number): tokenizer.decode(ids[:-1])
        for number, ids in enumerate(map(list, answers))
        if ids and ids[-1] == end
    }
    expected = {str(n): example.order.to_dict() for n, example in enumerate(task.examples)}
    name = directory.name.removesuffix("-ov")
    return Evaluation(name, form, task.prompts, score(texts, expected))


def _with_made_up_customer(example: Example, rng: random.Random) -> Example:
    """`example` with a customer of two made-up names."""

    customer = f"{made_up(rng)} {made_up(rng)}"
    return Example(
        example.message.replace(example.order.customer, customer),
        replace(example.order, customer=customer),
    )


def _without_padding(ids: list[int], pad: int) -> list[int]:
    return ids[: ids.index(pad)] if pad in ids else ids
