"""`tools` and `tool_choice` of a chat, checked; how a model is made to call is not known here."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.requests import ToolChoice
from batchgen.formats.openai.convert import convert
from batchgen.formats.openai.response_format import json_text
from batchgen.formats.schemas import schema_fault

_MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
_CHOICES = ("none", "auto", "required")


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    function: _Function


class _NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    function: _NamedFunction


def tools_of(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    parallel: bool | None,
) -> tuple[tuple[Mapping[str, Any], ...], ToolChoice | None]:
    """The tools that the template shows, and which may be called; none where nothing is offered.

    With `tool_choice` none the tools are not shown. Raises InvalidRequest.
    """
    if not tools:
        if tool_choice not in (None, "none", "auto"):
            raise InvalidRequest(
                "Invalid 'tool_choice': it needs 'tools'.",
                code="invalid_value",
                param="tool_choice",
            )
        return (), None
    if len(tools) > _MAX_TOOLS:
        raise InvalidRequest(
            f"Invalid 'tools': array too long. Expected at most {_MAX_TOOLS}, got {len(tools)}.",
            code="array_above_max_length",
            param="tools",
        )
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    names = [function.name for function in functions]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"Invalid 'tools': '{twice}' is there twice.", param="tools")
    if tool_choice == "none":
        return (), None
    chosen = _chosen(tool_choice, names)
    choice = ToolChoice(
        names=tuple(chosen or names),
        schemas=tuple(
            json_text(_NO_ARGUMENTS if f.parameters is None else f.parameters)
            for f in functions
            if not chosen or f.name in chosen
        ),
        required=tool_choice not in (None, "auto"),
        strict=any(function.strict for function in functions),
        parallel=parallel is not False and not chosen,
    )
    return tuple(_shown(function) for function in functions), choice


def _function(tool: Mapping[str, Any], place: str) -> _Function:
    read = convert(tool, _Tool, at=place)
    if read.type != "function":
        raise InvalidRequest(
            f"Invalid value for '{place}.type': only 'function' is supported.",
            code="unsupported_value",
            param=f"{place}.type",
        )
    function = read.function
    if not _NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"Invalid '{place}.function.name': 1 to 64 letters, digits, '_', '-' and '.'.",
            param=f"{place}.function.name",
        )
    if function.parameters is not None:
        fault = schema_fault(json_text(function.parameters))
        if function.parameters.get("type", "object") != "object":
            fault = "a function's arguments are an object, so its type must be object"
        if fault is not None:
            param = f"{place}.function.parameters"
            raise InvalidRequest(
                f"Invalid schema for '{param}': {fault}.", code="invalid_schema", param=param
            )
    return function


def _chosen(choice: str | Mapping[str, Any] | None, names: list[str]) -> list[str]:
    """The one function that is to be called, by name; empty where any may be."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, *_CHOICES):
            raise InvalidRequest(
                "Invalid value for 'tool_choice': supported are 'none', 'auto', 'required', or an "
                "object that names a function.",
                code="invalid_value",
                param="tool_choice",
            )
        return []
    named = convert(choice, _NamedTool, at="tool_choice")
    if named.type != "function":
        raise InvalidRequest(
            "Invalid value for 'tool_choice.type': only 'function' is supported.",
            code="unsupported_value",
            param="tool_choice.type",
        )
    if named.function.name not in names:
        raise InvalidRequest(
            "Invalid 'tool_choice': there is no such function among 'tools'.",
            param="tool_choice.function.name",
        )
    return [named.function.name]


def _shown(function: _Function) -> Mapping[str, Any]:
    """As templates show tools: without what only steers the decoding."""
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = _NO_ARGUMENTS if function.parameters is None else function.parameters
    return {"type": "function", "function": shown}
