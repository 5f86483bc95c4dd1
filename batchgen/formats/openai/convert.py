"""Decoded JSON to typed values, with errors in the words of the OpenAI API."""

import re
from typing import Any, TypeVar

import msgspec

from batchgen.domain.errors import InvalidRequest, UnknownOption

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")


def convert(value: Any, kind: type[T], *, at: str = "") -> T:
    """`value` as a `kind`; `at` is its place in the body. Raises InvalidRequest."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _in_openai_words(str(error), kind, at) from None
    except OverflowError:
        raise InvalidRequest("a number is out of range", param=at or None) from None


def _in_openai_words(message: str, kind: type[msgspec.Struct], at: str) -> InvalidRequest:
    place = _PLACE.match(message)
    what, inner = (place["what"], place["path"] or "") if place else (message, "")
    # msgspec does not tell which value of an object it means.
    path = _joined(at, inner.split("[...]")[0])
    if found := _MISSING.search(what):
        param = _joined(path, found["name"])
        return InvalidRequest(
            f"Missing required parameter: '{param}'.",
            code="missing_required_parameter",
            param=param,
        )
    if found := _UNKNOWN.search(what):
        unknown = UnknownOption.named(found["name"], kind.__struct_fields__, where=path)
        param = _joined(path, found["name"])
        return InvalidRequest(unknown.message, code="unknown_parameter", param=param)
    detail = what[:1].lower() + what[1:].replace("`", "")
    return InvalidRequest(
        f"Invalid type for '{path}': {detail}.", code="invalid_type", param=path or None
    )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
