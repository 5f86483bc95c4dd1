"""Physical lines: split at newlines only, wherever the chunks end, each at its offset."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.formats.jsonl import BOM, Block, LongLine, blocks, request_lines

BIG = 1 << 30


def read(chunks: list[bytes], max_line_bytes: int = BIG) -> list[tuple[int, int, bytes | int]]:
    """(line number, offset, line or the size of a long one) of every physical line."""
    out: list[tuple[int, int, bytes | int]] = []
    for piece in blocks(chunks, max_line_bytes=max_line_bytes):
        match piece:
            case LongLine(offset, number, n_bytes):
                out.append((number, offset, n_bytes))
            case Block(_, offset, number):
                for line in piece.lines():
                    out.append((number, offset, line))
                    number += 1
                    offset += len(line) + 1
    return out


def chop(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


pieces = st.sampled_from(
    [b"a", b"bb", b"\n", b"\n\n", b"\r\n", b" ", BOM, "\u2028".encode(), "\x85".encode(), b"x" * 9]
)


@given(st.lists(pieces, max_size=30).map(b"".join), st.lists(st.integers(0, 1000), max_size=8))
def test_lines_are_the_same_however_the_file_is_chunked(data: bytes, cuts: list[int]) -> None:
    body = data.removeprefix(BOM)
    offset = len(data) - len(body)
    expected: list[tuple[int, int, bytes | int]] = []
    lines = body.split(b"\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 1):
        expected.append((number, offset, line))
        offset += len(line) + 1
    assert read(chop(data, cuts)) == expected


@given(
    st.lists(pieces, max_size=30).map(b"".join),
    st.lists(st.integers(0, 1000), max_size=8),
    st.integers(1, 12),
)
def test_a_line_over_the_limit_is_told_and_costs_no_other_line(
    data: bytes, cuts: list[int], limit: int
) -> None:
    whole = read([data])
    limited = read(chop(data, cuts), limit)
    assert [(n, at) for n, at, _ in limited] == [(n, at) for n, at, _ in whole]
    for (_, at, line), (_, _, found) in zip(whole, limited, strict=True):
        assert isinstance(line, bytes)
        if len(line) <= limit:
            assert found == line
        else:
            ends_in_newline = data[at + len(line) : at + len(line) + 1] == b"\n"
            assert found == len(line) + ends_in_newline


def test_a_long_line_is_never_held() -> None:
    def endless() -> list[bytes]:
        return [b"{}\n"] + [b"x" * 1000] * 1000 + [b"\n{}\n"]

    assert read(endless(), 5_000) == [(1, 0, b"{}"), (2, 3, 1_000_001), (3, 1_000_004, b"{}")]


@pytest.mark.parametrize("data", [b"", BOM])
def test_an_empty_file_has_no_lines(data: bytes) -> None:
    assert read([data]) == []


def test_a_shards_requests_count_blank_lines_as_lines_only() -> None:
    found = list(request_lines(b"{1}\n\n \r\n{2}\r\n{3}", first_line=10, first_index=5))
    assert [(r.raw.strip(), r.index, r.line) for r in found] == [
        (b"{1}", 5, 10),
        (b"{2}", 6, 13),
        (b"{3}", 7, 14),
    ]
