"""Training batches: tokens of a chat, with loss on the answer only."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from tokenizers import Tokenizer
from torch import Tensor

from batchgen.demo.orders import INSTRUCTION, Example, examples
from batchgen.demo.recipe.tokenizer import END_OF_TEXT, END_OF_TURN, START_OF_TURN, token_id


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` [B, S] padded on the right; `targets` [B, S] is the next token, -1 where no loss."""

    ids: Tensor
    targets: Tensor


def instruction_ids(tokenizer: Tokenizer) -> list[int]:
    """The system turn: the prefix that all orders share."""
    ids: list[int] = tokenizer.encode(_turn("system", INSTRUCTION)).ids
    return ids


def prompt_ids(tokenizer: Tokenizer, message: str) -> list[int]:
    """The user turn and the opening of the answer."""
    opening = f"{START_OF_TURN}assistant\n"
    ids: list[int] = tokenizer.encode(_turn("user", message) + opening).ids
    return ids


def batches(tokenizer: Tokenizer, rows: int, seed: int) -> Iterator[Batch]:
    """Endless batches of training orders."""
    sampler = examples(seed, "training")
    while True:
        yield _batch(tokenizer, list(islice(sampler, rows)))


def _batch(tokenizer: Tokenizer, chosen: list[Example]) -> Batch:
    prompts = [prompt_ids(tokenizer, example.message) for example in chosen]
    answers = [tokenizer.encode(example.order.to_json() + END_OF_TURN).ids for example in chosen]
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(chosen), longest), token_id(tokenizer, END_OF_TEXT))
    targets = torch.full((len(chosen), longest), -1)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        first = len(prompt) - 1  # the position that predicts the first token of the answer
        targets[row, first : first + len(answer)] = torch.tensor(answer)
    return Batch(ids, targets)


def _turn(role: str, content: str) -> str:
    return f"{START_OF_TURN}{role}\n{content}{END_OF_TURN}\n"
