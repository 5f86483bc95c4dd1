"""The demo task: a free-text order in, one JSON object out.

Orders come from a seed, without end. They are split by combination: the held-out half never shares
a customer (first and last name together) nor a pair of city and item with a training order, while
every single word of it does occur in training.
"""

import calendar
import json
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Final, Literal

from batchgen.demo.phrasing import message
from batchgen.demo.words import CITIES, FIRST_NAMES, GOODS, LAST_NAMES, MATERIALS, UNITS, made_up

Split = Literal["training", "held-out"]

YEAR: Final = 2027
HELD_OUT_SEED: Final = 20_270_101
MAX_TOKENS: Final = 128
"""Enough for every answer: the longest has about 80 tokens."""

_BUCKETS: Final = 8  # one bucket of eight is held out, for customers and for city and item alike

INSTRUCTION: Final = (
    "You turn a customer order into JSON. Read the order and answer with one JSON object and "
    "nothing else. The fields are: customer, the full name of the person; city, the place of "
    "delivery; item, what is ordered, in the words of the order; quantity, a number; unit, the "
    "packing unit in the singular, such as box or crate; due, the day of delivery as year, month "
    "and day; urgent, true or false. All dates are in 2027. A reference number is not a quantity. "
    "Set urgent to true only if the order says so. Write the fields without spaces between them."
)
"""The system message of every order: fixed, so that its prefill can be shared between requests."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the model has to read out of a message; the fields in the order of the answer."""

    customer: str
    city: str
    item: str
    quantity: int
    unit: str
    due: str
    """YYYY-MM-DD."""
    urgent: bool

    def to_dict(self) -> dict[str, Any]:
        """The expected object, fields in order."""
        return asdict(self)

    def to_json(self) -> str:
        """The answer that counts as right, byte for byte as the model is trained to write it."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Example:
    """A message and the order in it."""

    message: str
    order: Order

    def messages(self) -> list[dict[str, str]]:
        """The conversation as a chat request holds it: the instruction, then the message."""
        return [
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": self.message},
        ]


@dataclass(frozen=True, slots=True)
class Score:
    """How many of `total` answers were right; every answer is counted in exactly one place."""

    total: int
    exact: int
    wrong: int
    """Valid JSON, but not the expected object."""
    unparsed: int
    """No JSON object at all, or no answer."""

    @property
    def exact_share(self) -> float:
        """Exact matches as a share of all orders, 0 to 1 (0 when there are none)."""
        return self.exact / self.total if self.total else 0.0


def examples(seed: int, split: Split, made_up_share: float = 0.0) -> Iterator[Example]:
    """Endless examples of one split; the same seed gives the same examples.

    In `made_up_share` of them the customer is a made-up name, in half as many the city, so that a
    model learns to copy what it has never seen as well.
    """
    rng = random.Random(seed)
    while True:
        order = _draw(rng)
        if made_up_share and rng.random() < made_up_share:
            order = replace(order, customer=f"{made_up(rng)} {made_up(rng)}")
        if made_up_share and rng.random() < made_up_share / 2:
            order = replace(order, city=made_up(rng))
        if split_of(order) == split:
            yield Example(message(order, rng), order)


def held_out(count: int, seed: int = HELD_OUT_SEED) -> list[Example]:
    """The first `count` held-out examples; with the default seed, those in examples/."""
    return list(islice(examples(seed, "held-out"), count))


def split_of(order: Order) -> Split | None:
    """The split that may use `order`; None when it mixes seen and held-out combinations."""
    customer = _bucket(order.customer) == 0
    delivery = _bucket(f"{order.city}|{order.item}") == 0
    if customer and delivery:
        return "held-out"
    return None if customer or delivery else "training"


def batch_line(example: Example, custom_id: str, model: str = "demo") -> dict[str, Any]:
    """`example` as one line of an OpenAI batch file, greedy."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": model,
            "messages": example.messages(),
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
        },
    }


def score(answers: Mapping[str, str], expected: Mapping[str, Mapping[str, Any]]) -> Score:
    """Compare answer texts with the expected objects, both by custom_id.

    An answer is exact when it parses to the expected object: the order of keys and white space do
    not matter, types do (`true` is not `1`). An order without an answer counts as unparsed.
    """
    exact = unparsed = 0
    for custom_id, wanted in expected.items():
        parsed = _parse(answers.get(custom_id, ""))
        if parsed is None:
            unparsed += 1
        elif _canonical(parsed) == _canonical(wanted):
            exact += 1
    return Score(len(expected), exact, len(expected) - exact - unparsed, unparsed)


def _draw(rng: random.Random) -> Order:
    """A random order of any split."""
    material = rng.choice(MATERIALS) + " " if rng.random() < 0.8 else ""
    month = rng.randrange(1, 13)
    day = rng.randrange(1, calendar.monthrange(YEAR, month)[1] + 1)
    return Order(
        customer=f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        city=rng.choice(CITIES),
        item=material + rng.choice(GOODS),
        quantity=rng.randrange(1, 10 ** rng.choice((1, 2, 2, 3, 3))),
        unit=rng.choice(tuple(UNITS)),
        due=f"{YEAR}-{month:02}-{day:02}",
        urgent=rng.random() < 0.4,
    )


def _bucket(combination: str) -> int:
    # crc32 and not hash(): the split must be the same in every process.
    return zlib.crc32(combination.encode()) % _BUCKETS


def _parse(answer: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(answer)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
