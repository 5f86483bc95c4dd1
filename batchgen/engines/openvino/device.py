"""Devices and their properties: which there are, and what a device makes of what is asked of it."""

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from batchgen.domain.errors import LoadFailed
from batchgen.engines.spec import Json

# Accepted by a plugin or the runtime, but not to be read back.
_WRITE_ONLY = frozenset({"CPU_RUNTIME_CACHE_CAPACITY", "CACHE_MODE", "ENABLE_MMAP"})
_OF_META_DEVICES = frozenset({"MODEL_DISTRIBUTION_POLICY", "MULTI_DEVICE_PRIORITIES"})


def physical_devices(core: ov.Core, device: str) -> list[str]:
    """The devices behind a device string (`CPU`, `GPU.1`, `HETERO:GPU,CPU`, `AUTO`).

    Raises LoadFailed naming the devices there are, where one of them is not.
    """
    there: list[str] = core.available_devices
    meta, _, listed = device.partition(":")
    if meta not in {"HETERO", "AUTO", "MULTI", "BATCH"}:
        listed = device
    wanted = [name.strip() for name in listed.split(",") if name.strip()] or list(there)
    for name in wanted:
        if name not in there and f"{name}.0" not in there:
            raise LoadFailed(f"there is no device {name!r} here; there are: {', '.join(there)}")
    return wanted


def apply_properties(
    core: ov.Core, devices: Sequence[str], properties: Mapping[str, Json]
) -> dict[str, Json]:
    """What the devices really hold when these properties are asked for.

    The pipeline hides its compiled model, so a trifling model is compiled with the same
    properties and asked. What cannot be read back is returned as asked. Raises LoadFailed where a
    property is unknown, its value is not taken, or another one is held instead.
    """
    held: dict[str, Json] = {}
    supported = {d: dict(core.get_property(d, "SUPPORTED_PROPERTIES")) for d in devices}
    for name, value in properties.items():
        holders = [d for d in devices if supported[d].get(name) == "RW"]
        if holders:
            held[name] = _held(core, holders[0], name, value)
        elif name in _WRITE_ONLY or (name in _OF_META_DEVICES and len(devices) > 1):
            held[name] = value
        else:
            known = {n for of in supported.values() for n, mode in of.items() if mode == "RW"}
            near = difflib.get_close_matches(name, known | _WRITE_ONLY, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise LoadFailed(f"runtime_config.{name}: no property of {', '.join(devices)}{hint}")
    return held


def device_state(core: ov.Core, device: str, properties: Mapping[str, Json]) -> dict[str, Json]:
    """Every setting of a device with these properties in force, its own defaults included."""
    supported = dict(core.get_property(device, "SUPPORTED_PROPERTIES"))
    own = {name: value for name, value in properties.items() if supported.get(name) == "RW"}
    compiled = core.compile_model(_trifle(), device, own)
    state: dict[str, Json] = {}
    for name, mode in supported.items():
        if mode == "RW":
            with contextlib.suppress(RuntimeError):  # some are settings of the plugin alone
                state[name] = _plain(compiled.get_property(name))
    return state


def _held(core: ov.Core, device: str, name: str, asked: Json) -> Json:
    try:
        compiled = core.compile_model(_trifle(), device, {name: asked})
        held = _plain(compiled.get_property(name))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise LoadFailed(
            f"runtime_config.{name}: {device} does not take {asked!r}: {reason}"
        ) from error
    if _canonical(held) != _canonical(asked):
        raise LoadFailed(f"runtime_config.{name}: {asked!r} was asked for, {device} holds {held!r}")
    return held


def _trifle() -> ov.Model:
    given = opset13.parameter([1], np.float32, name="x")
    return ov.Model([opset13.relu(given)], [given], "probe")


def _plain(value: Any) -> Json:
    """A property's value as JSON."""
    if isinstance(value, ov.Type):
        return str(value.to_string())
    if isinstance(value, set | frozenset | list | tuple):
        return ",".join(sorted(str(_plain(item)) for item in value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(getattr(value, "name", value))


def _canonical(value: Json) -> str:
    text = str(value).casefold()
    return {"yes": "true", "no": "false"}.get(text, text)
