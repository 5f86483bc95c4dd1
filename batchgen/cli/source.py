"""A job's input: a file or standard input, in OpenAI's batch form or as plain lines."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from batchgen.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from batchgen.client.upload import Upload

STDIN = "-"
_CHUNK = 1 << 20
# The first request decides the form of the file; one that is longer is left to the server to judge.
_LONGEST_HEAD = 8 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """An input that can be sent once. `endpoint` is what its first line asks for, if anything."""

    upload: "Upload"
    endpoint: str | None


def check_input(path: str) -> None:
    """Raises InvalidRequest where there is no input at `path`."""
    if path == STDIN:
        if sys.stdin.isatty():
            raise InvalidRequest("standard input is a terminal: name a file, or pipe one in")
        return
    file = Path(path)
    if not file.exists():
        raise InvalidRequest(f"no such input file: {path}", param="input")
    if file.is_dir():
        raise InvalidRequest(f"{path} is a directory: name a JSONL file", param="input")


@contextmanager
def opened(
    path: str, *, filename: str | None = None, endpoint: str | None = None
) -> Iterator[Source]:
    """The input at `path` ("-" is standard input). Raises InvalidRequest where there is none.

    `endpoint` is what all its lines must be for, None what the first one says.
    """
    from batchgen.cli import plain_lines
    from batchgen.client.upload import Upload

    with _open(path) as stream:
        name = filename or ("stdin.jsonl" if path == STDIN else Path(path).name)
        head: list[bytes] = []
        first = plain_lines.first_line(_recorded(_chunks(stream), head), longest=_LONGEST_HEAD)
        form = plain_lines.form_of(first)
        chunks = chain(head, _chunks(stream))
        if form.plain:
            yield Source(
                Upload(name, plain_lines.wrapped(chunks, endpoint=endpoint)), form.endpoint
            )
        else:
            yield Source(Upload(name, chunks, _size(stream)), form.endpoint)


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    check_input(path)
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as stream:
        yield stream


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _recorded(chunks: Iterator[bytes], into: list[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        into.append(chunk)
        yield chunk


def _size(stream: BinaryIO) -> int | None:
    """The bytes of a regular file; None for a pipe."""
    import stat

    found = os.fstat(stream.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None
