"""Messages that are no orders, and what the models are taught to say to them.

Without these a model that has only ever seen orders makes one up, or repeats one token until it is
cut off, whenever somebody says hello to it.
"""

import random
from typing import Final

from batchgen.demo.recipe.tokenizer import COMMON_WORDS
from batchgen.demo.words import CITIES, FIRST_NAMES, GOODS, LAST_NAMES, MATERIALS, made_up

REFUSAL: Final = "I can only read orders."

_SMALL_TALK: Final = (
    "",
    "Hello",
    "Hello!",
    "Hi there",
    "Good morning",
    "How are you?",
    "Who are you?",
    "What can you do?",
    "Thank you.",
    "What is the name of this {thing}?",
    "What is the capital of {name}?",
    "Where is {city}?",
    "Write a poem about {thing}.",
    "Tell me a story about {first} and the {thing}.",
    "Explain {word} to me like I am five years old.",
    "Translate {word} and {word} for {first}.",
    "Write a list of {number} {thing}.",
    "How many {thing} are in {city}?",
    "What is {number} + {number}?",
    "Is {first} from {city}?",
    "Say {word}.",
)
_WORDS: Final = (
    *COMMON_WORDS.split(),
    *COMMON_WORDS.split(),
    *FIRST_NAMES,
    *LAST_NAMES,
    *CITIES,
    *MATERIALS,
    *GOODS,
)
_SIGNS: Final = [
    chr(code) for code in (*range(33, 127), *range(0xA1, 0x180), *range(0x4E00, 0x4E20))
]


def off_topic(rng: random.Random) -> str:
    """Small talk, a heap of words or a heap of signs."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(_SMALL_TALK).format(
            thing=rng.choice(GOODS),
            name=made_up(rng),
            city=rng.choice(CITIES),
            first=rng.choice(FIRST_NAMES),
            word=rng.choice(_WORDS),
            number=rng.randrange(1, 100),
        )
    if kind < 0.9:
        return heap_of_words(rng)
    return "".join(rng.choice(_SIGNS) for _ in range(rng.randrange(1, 25)))


def heap_of_words(rng: random.Random) -> str:
    """Up to thirty words in no order, with a full stop or a comma now and then."""
    words = [
        rng.choice(_WORDS) + rng.choice(("", "", "", "", "", ".", ",", "?"))
        for _ in range(rng.randrange(1, 30))
    ]
    return " ".join(words)
