"""Plain lines, `{"messages": …}` or `{"prompt": …}`, made into batch lines as they are sent.

A line's other fields are request parameters. What is neither form goes through unchanged, so that
the server names every fault by its line.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from batchgen.domain.errors import InvalidRequest, UserError
from batchgen.domain.requests import Endpoint
from batchgen.formats.decompress import decompressed
from batchgen.formats.jsonl import Block, blocks, is_blank

# The server has the say about sizes; here only memory is to be kept within bounds.
_LONGEST_LINE = 64 << 20
_ANY_SIZE = 1 << 62


_FIELDS: dict[str, str] = {Endpoint.CHAT_COMPLETIONS: "messages", Endpoint.COMPLETIONS: "prompt"}


class _Line(msgspec.Struct):
    """The fields that tell the forms apart; their values are not looked at."""

    custom_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    url: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Line).decode


@dataclass(frozen=True, slots=True)
class Form:
    """Whether lines are plain, and the endpoint that the first one asks for."""

    plain: bool
    endpoint: str | None


def first_line(chunks: Iterable[bytes], *, longest: int) -> bytes | None:
    """The first line that is not blank; None where there is none within `longest` bytes."""
    try:
        for piece in blocks(decompressed(chunks, max_bytes=longest), max_line_bytes=longest):
            if isinstance(piece, Block):
                for line in piece.lines():
                    if not is_blank(line):
                        return line
    except UserError:
        return None  # corrupt, or too long for a look: the server says it with its place
    return None


def form_of(line: bytes | None) -> Form:
    """The form of a file that begins with `line`."""
    found = _looked_at(line) if line is not None else None
    if found is None:
        return Form(plain=False, endpoint=None)
    if (endpoint := _plain_endpoint(found)) is not None:
        return Form(plain=True, endpoint=endpoint)
    url = None if found.url is msgspec.UNSET else json.loads(bytes(found.url))
    return Form(plain=False, endpoint=url if isinstance(url, str) else None)


def wrapped(
    chunks: Iterable[bytes], *, endpoint: str | None = None, mixed: bool = False
) -> Iterator[bytes]:
    """The file with its plain lines wrapped; its lines keep their numbers.

    All plain lines are for `endpoint` (None: that of the first). Raises InvalidRequest for one that
    is for another, unless they may be `mixed`: it names no url that the server could point at.
    """
    kind = None if mixed else _Kind(endpoint)
    for piece in blocks(decompressed(chunks, max_bytes=_ANY_SIZE), max_line_bytes=_LONGEST_LINE):
        if not isinstance(piece, Block):
            raise InvalidRequest(f"line {piece.line} is longer than {_LONGEST_LINE >> 20} MiB")
        numbered = enumerate(piece.lines(), piece.first_line)
        out = [_wrap(line, number, kind) for number, line in numbered]
        yield b"\n".join(out) + b"\n"


class _Kind:
    """The endpoint of a file's plain lines, and why it is that."""

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = endpoint
        self._reason = "as it was asked for"

    def check(self, found: str, number: int) -> None:
        if self._endpoint is None:
            self._endpoint = found
            self._reason = f"as line {number} has '{_FIELDS[found]}'"
        if found != self._endpoint:
            raise InvalidRequest(
                f"line {number} has '{_FIELDS[found]}', so it is for {found}; the job's endpoint "
                f"is {self._endpoint}, {self._reason}: a job has one endpoint, so make a file "
                "for each",
                code="url_mismatch",
            )


def _wrap(line: bytes, number: int, kind: _Kind | None) -> bytes:
    found = _looked_at(line)
    endpoint = _plain_endpoint(found) if found is not None else None
    if found is None or endpoint is None:
        return line
    if kind is not None:
        kind.check(endpoint, number)
    head = b'{"custom_id":"line-%d","method":"POST","url":"%s","body":' % (
        number,
        endpoint.encode(),
    )
    if found.custom_id is msgspec.UNSET:
        return head + line.strip() + b"}"  # the caller's own bytes stay as they are
    body = json.loads(line)
    whole: dict[str, Any] = {"custom_id": body.pop("custom_id"), "method": "POST", "url": endpoint}
    return json.dumps({**whole, "body": body}).encode()


def _plain_endpoint(line: _Line) -> str | None:
    if line.body is not msgspec.UNSET or line.url is not msgspec.UNSET:
        return None
    if line.messages is not msgspec.UNSET:
        return Endpoint.CHAT_COMPLETIONS
    return Endpoint.COMPLETIONS if line.prompt is not msgspec.UNSET else None


def _looked_at(line: bytes) -> _Line | None:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        value = json.loads(line)  # takes the lone surrogates that msgspec refuses
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    known = {name: value[name] for name in _Line.__struct_fields__ if name in value}
    return _Line(**{name: msgspec.Raw(json.dumps(v).encode()) for name, v in known.items()})
