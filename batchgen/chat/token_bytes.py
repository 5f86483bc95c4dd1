"""A token's bytes: what it adds to a text, also where it is only a part of a character.

Decoding one id alone would not do: it loses a space at the beginning, and of half a character it
makes a replacement character.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"


def token_bytes(definition: str) -> Callable[[str], bytes]:
    """From a tokenizer.json, the way from a token as its vocabulary has it to bytes."""
    decoder = json.loads(definition).get("decoder")
    kinds = {stage["type"]: stage for stage in _stages(decoder)}
    if "ByteLevel" in kinds:
        return _of_byte_level
    if "WordPiece" in kinds:
        prefix = kinds["WordPiece"].get("prefix") or "##"
        return lambda token: token.removeprefix(prefix).encode()
    has_bytes = "ByteFallback" in kinds
    start = str(kinds.get("Metaspace", {}).get("replacement") or _WORD_START)
    return lambda token: _of_pieces(token, start, has_bytes=has_bytes)


def _of_pieces(token: str, start: str, *, has_bytes: bool) -> bytes:
    if has_bytes and (found := _BYTE.fullmatch(token)):
        return bytes([int(found[1], 16)])
    return token.replace(start, " ").encode()


def _of_byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTES_BY_CHAR[char] for char in token)
    except KeyError:  # an added token, in plain text
        return token.encode()


def _stages(stage: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if stage is None:
        return []
    if stage["type"] == "Sequence":
        return [inner for part in stage["decoders"] for inner in _stages(part)]
    return [stage]


def _byte_level_alphabet() -> dict[str, int]:
    """The bytes by the printable characters that stand for them: GPT-2's own table.

    A byte that is a printable character of Latin-1 is itself, the others are counted on from 256.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTES_BY_CHAR = _byte_level_alphabet()
