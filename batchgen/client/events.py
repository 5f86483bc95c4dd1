"""Server-sent events: the wire form, parsed by hand because only `\\n` and `\\r` end its lines."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` is None for those that cannot be resumed from (progress)."""

    name: str
    data: Any
    id: str | None = None


def parsed(chunks: Iterable[bytes]) -> Iterator[Event]:
    """The events in a stream; comments (heartbeats) are passed over, a cut-off event is dropped."""
    name: str = "message"
    identity: str | None = None
    data: list[str] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield Event(name, json.loads("\n".join(data)), identity)
            name, identity, data = "message", None, []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                name = value
            case "id":
                identity = value
            case "data":
                data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()
