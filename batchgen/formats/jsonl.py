"""JSONL as a stream of physical lines, in blocks of whole lines that say where they lie.

Only `\\n` ends a line: U+2028, U+2029 and U+0085 are ordinary characters. A byte order mark at the
start belongs to no line. What a line means is not looked at here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive whole lines; all but the file's last end in a newline.

    `byte_start` is the offset of `data` in the file, `first_line` counts physical lines from 1.
    """

    data: bytes
    byte_start: int
    first_line: int

    def lines(self) -> list[bytes]:
        """The lines without their newline (a `\\r` before it stays: to JSON it is white space)."""
        found = self.data.split(b"\n")
        if not found[-1]:
            found.pop()
        return found


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line over the limit, of which nothing was kept. `n_bytes` counts its newline, if any."""

    byte_start: int
    line: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request of a shard. `index` counts requests from 0, `line` physical lines from 1."""

    raw: bytes
    index: int
    line: int


def blocks(chunks: Iterable[bytes], *, max_line_bytes: int) -> Iterator[Block | LongLine]:
    """Cut a file that comes in chunks of any size at its line ends.

    Holds one chunk and one line, never more than `max_line_bytes` of a line that has not ended yet.
    """
    cutter = _Cutter(max_line_bytes)
    for chunk in _without_bom(chunks, cutter):
        yield from cutter.feed(chunk)
    yield from cutter.finish()


def request_lines(data: bytes, *, first_line: int, first_index: int) -> Iterator[RequestLine]:
    """The requests in a shard's bytes; blank lines are no requests, yet they count as lines."""
    index = first_index
    for line, raw in enumerate(data.split(b"\n"), first_line):
        if not is_blank(raw):
            yield RequestLine(raw, index, line)
            index += 1


def is_blank(line: bytes) -> bool:
    """Whether the line holds nothing but what JSON takes for white space."""
    return not line.strip(b" \t\r")


class _Cutter:
    def __init__(self, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self.offset = 0
        self._line = 1
        self._tail: list[bytes] = []
        self._n_tail = 0
        self._n_dropped = 0

    def feed(self, chunk: bytes) -> Iterator[Block | LongLine]:
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._keep(chunk)
            return
        start = 0
        if self._n_dropped:
            start = chunk.index(b"\n") + 1
            self._n_dropped += start
            yield self._long_line()
        if start < end:
            self._tail.append(chunk[start:end] if start or end < len(chunk) else chunk)
            yield from self._whole_lines()
        self._keep(chunk[end:])

    def finish(self) -> Iterator[Block | LongLine]:
        if self._n_dropped:
            yield self._long_line()
        elif self._n_tail:
            yield from self._whole_lines()

    def _keep(self, piece: bytes) -> None:
        if self._n_dropped:
            self._n_dropped += len(piece)
            return
        if piece:
            self._tail.append(piece)
            self._n_tail += len(piece)
        if self._n_tail > self._max:
            self._n_dropped = self._n_tail
            self._forget_tail()

    def _whole_lines(self) -> Iterator[Block | LongLine]:
        data = self._tail[0] if len(self._tail) == 1 else b"".join(self._tail)
        self._forget_tail()
        block = Block(data, self.offset, self._line)
        if len(data) > self._max and max(map(len, lines := block.lines())) > self._max:
            yield from self._apart(lines, ends_whole=data.endswith(b"\n"))
            return
        n_lines = data.count(b"\n") + (not data.endswith(b"\n"))
        self._advance(len(data), n_lines)
        yield block

    def _apart(self, lines: list[bytes], *, ends_whole: bool) -> Iterator[Block | LongLine]:
        """The lines, those over the limit set apart from the blocks of the others."""
        good: list[bytes] = []
        for i, line in enumerate(lines):
            newline = 1 if ends_whole or i < len(lines) - 1 else 0
            if len(line) <= self._max:
                good.append(line + b"\n" if newline else line)
                continue
            yield from self._together(good)
            good = []
            self._n_dropped = len(line) + newline
            yield self._long_line()
        yield from self._together(good)

    def _together(self, lines: list[bytes]) -> Iterator[Block]:
        if lines:
            block = Block(b"".join(lines), self.offset, self._line)
            self._advance(len(block.data), len(lines))
            yield block

    def _long_line(self) -> LongLine:
        found = LongLine(self.offset, self._line, self._n_dropped)
        self._advance(self._n_dropped, 1)
        self._n_dropped = 0
        return found

    def _advance(self, n_bytes: int, n_lines: int) -> None:
        self.offset += n_bytes
        self._line += n_lines

    def _forget_tail(self) -> None:
        self._tail = []
        self._n_tail = 0


def _without_bom(chunks: Iterable[bytes], cutter: _Cutter) -> Iterator[bytes]:
    head = b""
    rest = iter(chunks)
    for chunk in rest:
        head += chunk
        if len(head) >= len(BOM):
            break
    if head.startswith(BOM):
        cutter.offset = len(BOM)
        head = head[len(BOM) :]
    if head:
        yield head
    yield from rest
