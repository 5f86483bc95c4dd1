"""Training batches: tokens of a chat, with loss on the answer only."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from batchgen.demo.orders import INSTRUCTION, Example, examples
from batchgen.demo.recipe.off_topic import REFUSAL, heap_of_words, off_topic
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


@dataclass(frozen=True, slots=True)
class Mixture:
    """What the conversations of a training run are drawn from."""

    rows: int
    """Conversations a batch."""
    seed: int
    """Of the orders here, and of the first weights in training."""
    made_up_share: float
    """Share of orders with a made-up customer; half as many have a made-up city."""
    off_topic_share: float
    """Share of conversations without an order, answered with a refusal."""
    sorted_batches: int
    """Sort this many batches' worth by length (8 saves about a seventh in padding); 1: do not."""


def batches(tokenizer: Tokenizer, mixture: Mixture) -> Iterator[Batch]:
    """Endless batches of training conversations."""
    rng = random.Random(mixture.seed)
    sampler = examples(mixture.seed, "training", mixture.made_up_share)
    while True:
        pool = [
            _off_topic_row(tokenizer, rng)
            if rng.random() < mixture.off_topic_share
            else _order_row(tokenizer, next(sampler))
            for _ in range(mixture.rows * mixture.sorted_batches)
        ]
        if mixture.sorted_batches > 1:
            pool.sort(key=lambda row: len(row.prompt) + len(row.answer))
        batch_starts = list(range(0, len(pool), mixture.rows))
        rng.shuffle(batch_starts)
        for first in batch_starts:
            yield _batch(pool[first : first + mixture.rows], token_id(tokenizer, END_OF_TEXT))


@dataclass(frozen=True, slots=True)
class _Row:
    prompt: list[int]
    answer: list[int]


def _order_row(tokenizer: Tokenizer, example: Example) -> _Row:
    answer = example.order.to_json() + END_OF_TURN
    return _Row(prompt_ids(tokenizer, example.message), tokenizer.encode(answer).ids)


def _off_topic_row(tokenizer: Tokenizer, rng: random.Random) -> _Row:
    """A refusal; now and then another system message stands before it."""
    strange = _turn("system", heap_of_words(rng)) if rng.random() < 0.3 else ""
    prompt = tokenizer.encode(strange).ids + prompt_ids(tokenizer, off_topic(rng))
    return _Row(prompt, tokenizer.encode(REFUSAL + END_OF_TURN).ids)


def _batch(rows: list[_Row], pad: int) -> Batch:
    longest = max(len(row.prompt) + len(row.answer) for row in rows)
    ids = torch.full((len(rows), longest), pad)
    targets = torch.full((len(rows), longest), -1)
    for number, row in enumerate(rows):
        ids[number, : len(row.prompt) + len(row.answer)] = torch.tensor(row.prompt + row.answer)
        first = len(row.prompt) - 1  # the position that predicts the first token of the answer
        targets[number, first : first + len(row.answer)] = torch.tensor(row.answer)
    return Batch(ids, targets)


def _turn(role: str, content: str) -> str:
    return f"{START_OF_TURN}{role}\n{content}{END_OF_TURN}\n"
