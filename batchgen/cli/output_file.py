"""Output that appears whole or not at all: a file takes its name only when it is complete."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from batchgen.domain.errors import InvalidRequest

STDOUT = "-"


def check_output(output: str, *, reads: str | None = None) -> None:
    """Raises InvalidRequest where `output` cannot become a file, or is the input that is read."""
    if output == STDOUT:
        return
    path = Path(output)
    if path.is_dir():
        raise InvalidRequest(f"{output} is a directory: name a file")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"the directory of {output} does not exist")
    if reads is not None and path.exists() and Path(reads).exists() and path.samefile(reads):
        raise InvalidRequest(f"{output} is the input itself: name another file for the output")


@contextmanager
def written(output: str) -> Iterator[BinaryIO]:
    """A stream to `output` ("-": standard output); an existing file is replaced at the end.

    A device or a pipe is written to as it is. Raises as `check_output` does.
    """
    check_output(output)
    if output == STDOUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
        return
    # A link is followed: what it points to is replaced, not the link.
    path = path.resolve()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("xb") as stream:
            yield stream
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
