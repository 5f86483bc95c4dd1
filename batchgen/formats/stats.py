"""What is in an input file, at a look: sizes, endpoints, models, prompts and lengths asked for.

Lines that cannot be read are counted, not explained: that is what validation is for.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from batchgen.formats.jsonl import Block, LongLine, blocks, is_blank

_OTHERS = "(others)"
_NAMES_KEPT = 100


class _Message(msgspec.Struct):
    content: Any = None


class _Body(msgspec.Struct):
    model: str | None = None
    messages: list[_Message] = []
    prompt: Any = None
    input: Any = None
    instructions: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None


class _Line(msgspec.Struct):
    url: str | None = None
    body: _Body = msgspec.field(default_factory=_Body)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a number is distributed over the lines that have it; None everywhere where none has."""

    n: int
    total: int
    least: int | None
    mean: float | None
    median: int | None
    p99: int | None
    most: int | None

    @classmethod
    def of(cls, values: "array[int]") -> "Spread":
        if not values:
            return cls(0, 0, None, None, None, None, None)
        ordered = sorted(values)
        n, total = len(ordered), sum(ordered)
        p99 = ordered[min(n - 1, n * 99 // 100)]
        return cls(n, total, ordered[0], total / n, ordered[n // 2], p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class FileStats:
    """`prompt_chars` counts the text of messages, prompt or input with its instructions;
    `max_tokens` is what lines ask for.
    """

    n_bytes: int
    n_lines: int
    n_blank: int
    n_unreadable: int
    n_requests: int
    endpoints: dict[str, int]
    models: dict[str, int]
    line_bytes: Spread
    prompt_chars: Spread
    prompt_tokens: Spread
    max_tokens: Spread


def file_stats(chunks: Iterable[bytes], *, max_line_bytes: int = 8 * 2**20) -> FileStats:
    """One look through an uncompressed file; holds 24 bytes a line."""
    counted = _Counted()
    for piece in blocks(chunks, max_line_bytes=max_line_bytes):
        match piece:
            case LongLine(byte_start, number, n_bytes):
                counted.n_unreadable += 1
                counted.n_lines, counted.n_bytes = number, byte_start + n_bytes
            case Block(data, byte_start, number):
                lines = piece.lines()
                for line in lines:
                    counted.take(line)
                counted.n_lines = number + len(lines) - 1
                counted.n_bytes = byte_start + len(data)
    return counted.stats()


class _Counted:
    def __init__(self) -> None:
        self.n_bytes = 0
        self.n_lines = 0
        self.n_blank = 0
        self.n_unreadable = 0
        self._urls: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._line_bytes = array("q", ())
        self._prompt_chars = array("q", ())
        self._prompt_tokens = array("q", ())
        self._max_tokens = array("q", ())
        self._decode = msgspec.json.Decoder(_Line).decode

    def take(self, line: bytes) -> None:
        if is_blank(line):
            self.n_blank += 1
            return
        try:
            read = self._decode(line)
        except (msgspec.MsgspecError, RecursionError):
            self.n_unreadable += 1
            return
        body = read.body
        _count(self._urls, read.url or "(none)")
        _count(self._models, body.model or "(none)")
        self._line_bytes.append(len(line))
        prompt = body.prompt[0] if _is_single(body.prompt) else body.prompt
        if isinstance(prompt, list):
            self._prompt_tokens.append(len(prompt))
        else:
            given = [prompt, body.input, body.instructions, [m.content for m in body.messages]]
            self._prompt_chars.append(_n_chars(given))
        asked = body.max_output_tokens or body.max_completion_tokens or body.max_tokens
        if asked is not None and 0 < asked < 2**63:
            self._max_tokens.append(asked)

    def stats(self) -> FileStats:
        return FileStats(
            n_bytes=self.n_bytes,
            n_lines=self.n_lines,
            n_blank=self.n_blank,
            n_unreadable=self.n_unreadable,
            n_requests=self.n_lines - self.n_blank,
            endpoints=dict(self._urls.most_common()),
            models=dict(self._models.most_common()),
            line_bytes=Spread.of(self._line_bytes),
            prompt_chars=Spread.of(self._prompt_chars),
            prompt_tokens=Spread.of(self._prompt_tokens),
            max_tokens=Spread.of(self._max_tokens),
        )


def _count(counter: Counter[str], name: str) -> None:
    counter[name if name in counter or len(counter) < _NAMES_KEPT else _OTHERS] += 1


def _is_single(prompt: object) -> bool:
    return isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list)


def _n_chars(content: object) -> int:
    """The characters of a text, of a part or an item with text, or of all of a list of them."""
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(map(_n_chars, content))
    if isinstance(content, dict):
        return _n_chars([content.get(name) for name in ("text", "content", "output")])
    return 0
