"""What is wrong with one line of an input file: the slow and exact look, for lines that need it."""

import json
from typing import Any, NoReturn

from batchgen.domain.errors import UnknownOption
from batchgen.domain.jobs import Fault

MAX_CUSTOM_ID = 512
_KNOWN = ("custom_id", "method", "url", "body")
_SHOWN = 64


def read_object(line: bytes, number: int) -> dict[str, Any] | Fault:
    """The line's JSON object, lone surrogates and all; or what keeps it from being one."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Fault("invalid_utf8", f"byte {error.start + 1} of the line is not UTF-8", number)
    try:
        value = json.loads(text, parse_constant=_no_such_constant)
    except json.JSONDecodeError as error:
        place = f"character {error.pos + 1}"
        return Fault("invalid_json_line", f"the line is not JSON: {error.msg} at {place}", number)
    except ValueError as error:
        return Fault("invalid_json_line", f"the line is not JSON: {error}", number)
    except RecursionError:
        return Fault("invalid_json_line", "the line is nested too deeply", number)
    if not isinstance(value, dict):
        return Fault("invalid_json_line", "the line must hold one JSON object", number)
    return value


def envelope_faults(value: dict[str, Any], number: int, url: str) -> list[Fault]:
    """Every fault of a line's fields, but for what depends on other lines (its model, its id)."""
    faults = [
        Fault(
            "unknown_parameter",
            UnknownOption.named(printable(name), _KNOWN).message,
            number,
            printable(name),
        )
        for name in value
        if name not in _KNOWN
    ]
    faults += [missing(name, number) for name in _KNOWN if value.get(name) is None]
    custom_id, method, body = value.get("custom_id"), value.get("method"), value.get("body")
    if custom_id is not None:
        faults += _custom_id_faults(custom_id, number)
    if method is not None and method != "POST":
        faults.append(
            Fault("invalid_method", f"method must be 'POST', not {shown(method)}", number, "method")
        )
    if value.get("url") is not None and value["url"] != url:
        message = f"the job's endpoint is '{url}', the line's url {shown(value['url'])}"
        faults.append(Fault("url_mismatch", message, number, "url"))
    if isinstance(body, dict):
        stream = body.get("stream")
        if stream is not None and stream is not False:
            message = "a batch cannot stream: leave out body.stream, or set it to false"
            faults.append(Fault("stream_unsupported", message, number, "body.stream"))
    elif body is not None:
        faults.append(Fault("invalid_type", "body must be a JSON object", number, "body"))
    return faults


def readable_id(value: dict[str, Any]) -> str | None:
    """The line's custom_id where it has a usable one."""
    custom_id = value.get("custom_id")
    return custom_id if isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID else None


def model_faults(body: dict[str, Any], number: int) -> list[Fault]:
    """What is wrong with a line's model by itself."""
    model = body.get("model")
    if model is None:
        return []
    if not isinstance(model, str):
        return [Fault("invalid_type", "body.model must be a string", number, "body.model")]
    if not model or "\0" in model or _has_lone_surrogate(model):
        return [
            Fault("invalid_value", f"{shown(model)} names no model", number, "body.model"),
        ]
    return []


def is_utf8(data: bytes) -> bool:
    """Whether the bytes are UTF-8; msgspec does not look into strings that it skips."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def missing(name: str, number: int) -> Fault:
    return Fault("missing_required_parameter", f"the line has no {name}", number, name)


def shown(value: object) -> str:
    """A user's value for a message: bounded, and without a NUL or lone surrogate in it."""
    try:
        return _bounded(repr(value))
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"


def printable(name: str) -> str:
    """A user's field name for a message, as `shown` does it but without quotes."""
    return _bounded(name if name.isprintable() else repr(name)[1:-1])


def _custom_id_faults(custom_id: object, number: int) -> list[Fault]:
    if not isinstance(custom_id, str):
        return [Fault("invalid_type", "custom_id must be a string", number, "custom_id")]
    if not custom_id:
        return [Fault("invalid_value", "custom_id must not be empty", number, "custom_id")]
    if len(custom_id) > MAX_CUSTOM_ID:
        message = f"custom_id has {len(custom_id)} characters, more than {MAX_CUSTOM_ID}"
        return [Fault("invalid_value", message, number, "custom_id")]
    return []


def _bounded(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _no_such_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
