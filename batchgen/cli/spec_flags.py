"""A flag for every engine setting, made from the typed specs: a setting has one place.

A flag is named after its setting; settings of a part carry the part's name before theirs, but those
of the scheduler, which users of OpenVINO servers know by their bare names.
"""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter
from typing import Annotated, Any, Literal

import msgspec
import typer

from batchgen.engines.spec import OpenVinoEmbeddingSpec, OpenVinoSpec, SimulatedSpec
from batchgen.engines.spec_texts import texts_of

# Given in another way, or by the server alone.
_NO_FLAG = frozenset(
    {
        *("path", "device", "cache_dir"),
        *("content_hash", "draft.content_hash", "lora.content_hash"),
        # --num-assistant-tokens is of the way of speculation that is chosen.
        "prompt_lookup.num_assistant_tokens",
    }
)
# The names by which OpenVINO servers know them.
_KNOWN_AS = {
    "draft.path": "draft_model_path",
    "draft.num_assistant_tokens": "num_assistant_tokens",
    "draft.assistant_confidence_threshold": "assistant_confidence_threshold",
}
_SCHEDULER = "scheduler_config."


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: the name of its parameter, its setting's dotted place, its type and text."""

    parameter: str
    setting: str
    kind: Any
    text: str

    @property
    def option(self) -> str:
        return "--" + self.parameter.replace("_", "-")

    @property
    def takes_json(self) -> bool:
        return _plain(self.kind) in (dict, list)


def engine_flags() -> tuple[Flag, ...]:
    """In the order of the spec, parts after what is the model's own."""
    flags = {flag.parameter: flag for flag in _of(OpenVinoSpec, "")}
    for flag in _of(OpenVinoEmbeddingSpec, ""):
        flags.setdefault(flag.parameter, flag)
    return tuple(flags.values())


def parameters(flags: tuple[Flag, ...]) -> list[Parameter]:
    """What typer makes options of; None is a flag that is not given."""
    return [
        Parameter(
            flag.parameter,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_option_type(flag) | None, _option(flag)],
        )
        for flag in flags
    ]


def values(flags: tuple[Flag, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are given, by their dotted place.

    Raises InvalidRequest where a value that must be JSON is none.
    """
    from batchgen.cli.engine_flags import json_value

    out: dict[str, Any] = {}
    for flag in flags:
        value = given.get(flag.parameter)
        if value is None:
            continue
        if isinstance(value, Enum):
            value = value.value
        if flag.takes_json:
            value = json_value(value, flag.option, _plain(flag.kind))
        out[flag.setting] = value
    return out


def place_in(engine: str, setting: str) -> str:
    """The simulated engine has some of the scheduler's settings as its own."""
    name = setting.removeprefix(_SCHEDULER)
    if engine == "simulated" and name in SimulatedSpec.__struct_fields__:
        return name
    return setting


def _of(kind: type[msgspec.Struct], above: str) -> Iterator[Flag]:
    parts = []
    for field in msgspec.structs.fields(kind):
        setting = f"{above}{field.name}"
        if setting in _NO_FLAG:
            continue
        struct = _struct_in(field.type)
        if struct is not None:
            parts.append((struct, f"{setting}."))
            continue
        yield Flag(_parameter(setting), setting, field.type, texts_of(kind)[field.name])
    for struct, place in parts:
        yield from _of(struct, place)


def _parameter(setting: str) -> str:
    return _KNOWN_AS.get(setting) or setting.removeprefix(_SCHEDULER).replace(".", "_")


def _option(flag: Flag) -> Any:
    if _plain(flag.kind) is bool:
        return typer.Option(f"{flag.option}/--no-{flag.option.removeprefix('--')}", help=flag.text)
    metavar = "JSON" if flag.takes_json else "PATH" if flag.setting.endswith("path") else None
    return typer.Option(flag.option, metavar=metavar, help=flag.text)


def _option_type(flag: Flag) -> Any:
    plain = _plain(flag.kind)
    if typing.get_origin(plain) is Literal:
        choices = typing.get_args(plain)
        return Enum(flag.parameter, {str(choice): choice for choice in choices}, type=str)
    return str if flag.takes_json else plain


def _plain(kind: Any) -> Any:
    """The type without its None; containers without what they hold."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (a for a in typing.get_args(kind) if a is not types.NoneType)
    origin = typing.get_origin(kind)
    return origin if origin in (dict, list) else kind


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    plain = _plain(kind)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return plain
    return None
