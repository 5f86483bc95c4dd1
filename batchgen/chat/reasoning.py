"""What a thinking model thought, split off from what it says.

A model thinks between two tags, at the beginning of its answer only; many templates write the first
tag into the prompt, so that the answer begins inside. Thinking that was cut short has no end.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """The two texts that a model's thinking stands between."""

    begin: str
    end: str


THINK = ThinkTags("<think>", "</think>")
MISTRAL = ThinkTags("[THINK]", "[/THINK]")

REASONING_PARSERS = {"think": THINK, "mistral": MISTRAL}


@dataclass(frozen=True, slots=True)
class Thought:
    """An answer in its parts. `thinking_ends` is how much of the text the thinking takes, its end
    tag included; None where it was cut short.
    """

    reasoning: str
    content: str
    thinking_ends: int | None


def tags_of(template: str) -> ThinkTags | None:
    """The tags that a chat template writes or strips; None where it knows of no thinking."""
    for tags in REASONING_PARSERS.values():
        if tags.end in template:
            return tags
    return None


def is_opened(prompt_end: str, tags: ThinkTags) -> bool:
    """Whether the prompt, by its last tokens, leaves the model thinking."""
    return prompt_end.rstrip().endswith(tags.begin)


def split(text: str, tags: ThinkTags, *, opened: bool) -> Thought | None:
    """The parts of an answer; None where there is no thinking in it.

    Line breaks beside the tags are the template's way of writing, and part of neither.
    """
    start = 0
    if not opened or text.lstrip().startswith(tags.begin):
        if not text.lstrip().startswith(tags.begin):
            return None
        start = text.index(tags.begin) + len(tags.begin)
    end = text.find(tags.end, start)
    if end < 0:
        return Thought(text[start:].strip("\n"), "", None)
    after = end + len(tags.end)
    return Thought(text[start:end].strip("\n"), text[after:].lstrip("\n"), after)
