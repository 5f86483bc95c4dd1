"""Tool calls in generated text, in the ways that families of models write them.

    written = tool_format(template)              # of tool_formats.py
    rest, calls = written.parse(text, choice)
    grammar = call_grammar(written, choice)      # for answers that must hold a call

Whatever the text, nothing raises and nothing is lost: what is no call of an offered function, with
an object of arguments, stays text.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.requests import Grammar, GrammarKind, ToolChoice

_decoder = json.JSONDecoder()
_ABSENT = msgspec.Raw()


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


class ToolFormat(Protocol):
    """One way of writing calls."""

    @property
    def markers(self) -> frozenset[str]:
        """Texts that may be control tokens: they must survive the decoding of an answer."""
        ...

    def parse(self, text: str, choice: ToolChoice) -> tuple[str, list[Call]]:
        """The text without the calls in it, and those calls in their order."""
        ...

    def tags(self, choice: ToolChoice) -> "Tags | None":
        """How a grammar holds calls to their form; None where it cannot be said."""
        ...


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around each function's arguments, for a grammar.

    `trigger` begins a call in free text; None where nothing tells a call from other text. With
    `separator` None there is one call at most.
    """

    around: tuple[tuple[str, str], ...]
    content: str = "json_schema"
    trigger: str | None = None
    separator: str | None = None


class _WrittenCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = _ABSENT
    parameters: msgspec.Raw = _ABSENT


def call_grammar(written: ToolFormat, choice: ToolChoice) -> Grammar | None:
    """What holds an answer to the choice: a call where one is required, its arguments' schemas.

    None where nothing needs to be held. Raises InvalidRequest where this way of writing calls
    cannot be held to it.
    """
    if not choice.required and not choice.strict:
        return None
    tags = written.tags(choice)
    if tags is None or (tags.trigger is None and not choice.required):
        raise InvalidRequest(
            "Unsupported parameter: this model's tool calls cannot be held to 'strict' schemas "
            "unless a call is required.",
            code="unsupported_parameter",
            param="tools",
        )
    forms = [
        {
            "type": "tag",
            "begin": begin,
            "content": _arguments(tags.content, json.loads(schema)),
            "end": end,
        }
        for (begin, end), schema in zip(tags.around, choice.schemas, strict=True)
    ]
    once = not choice.parallel or tags.separator is None
    form: dict[str, Any] = {"tags": forms, "stop_after_first": once}
    if choice.required:
        form |= {"type": "tags_with_separator", "separator": tags.separator or ""}
        form["at_least_one"] = True
    else:
        form |= {"type": "triggered_tags", "triggers": [tags.trigger], "at_least_one": False}
    source = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    return Grammar(
        GrammarKind.STRUCTURAL_TAG, source, "tool_choice" if choice.required else "tools"
    )


def _arguments(kind: str, schema: Any) -> dict[str, Any]:
    if kind != "json_schema" and not schema.get("properties"):
        return {"type": "const_string", "value": "\n"}  # without parameters there is nothing else
    return {"type": kind, "json_schema": schema}


def after(text: str, at: int, expected: str) -> int:
    """Where the text goes on after blanks and `expected`; `at` itself where that is not there."""
    start = at
    while start < len(text) and text[start].isspace():
        start += 1
    return start + len(expected) if text.startswith(expected, start) else at


def joined(rest: Sequence[str], calls: Collection[Call]) -> str:
    """What remains of a text; the blanks around calls go with them."""
    text = "".join(rest)
    return text.strip() if calls else text


def json_at(text: str, at: int) -> tuple[Any, int] | None:
    """The JSON value that begins at a place, and where it ends."""
    try:
        return _decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def read_call(text: str, at: int, names: Collection[str]) -> tuple[Call, int] | None:
    """The JSON object of a call at a place, blanks before it allowed, and where it ends."""
    while at < len(text) and text[at].isspace():
        at += 1
    value = json_at(text, at)
    if value is None:
        return None
    try:
        call = msgspec.json.decode(text[at : value[1]], type=_WrittenCall)
        raw = bytes(call.arguments) or bytes(call.parameters)
        arguments = raw.decode() or "{}"
        if arguments.startswith('"'):  # some models write the object as a text
            arguments = msgspec.json.decode(arguments, type=str)
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return (Call(call.name, arguments), value[1]) if call.name in names else None
