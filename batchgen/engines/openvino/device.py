"""Devices and their properties: which there are, and what a device makes of what is asked of it."""

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from batchgen.domain.errors import LoadFailed
from batchgen.engines.openvino.lint_devices import listed_devices
from batchgen.engines.spec import Json

# Accepted by a plugin or the runtime, but not to be read back.
_WRITE_ONLY = frozenset({"CPU_RUNTIME_CACHE_CAPACITY", "CACHE_MODE", "ENABLE_MMAP"})
# Values that leave the choice to the device, so that any other is held.
_ANY = frozenset({("NUM_STREAMS", "auto"), ("INFERENCE_NUM_THREADS", "0")})
_MEMORY = {"GPU": "GPU_DEVICE_TOTAL_MEM_SIZE", "NPU": "NPU_DEVICE_TOTAL_MEM_SIZE"}

Settings = dict[str, Json]


@dataclass(frozen=True)
class HeldProperties:
    """Properties as a device holds them.

    `asked` are those that were asked for, `devices` all settings of each device behind the device
    string, its own defaults included; a meta device is one of them.
    """

    asked: Settings
    devices: dict[str, Settings]


def physical_devices(core: ov.Core, device: str) -> list[str]:
    """The devices behind a device string (`CPU`, `GPU.1`, `HETERO:GPU,CPU`, `AUTO`).

    Raises LoadFailed naming the devices there are, where one of them is not.
    """
    there: list[str] = core.available_devices
    meta, names = listed_devices(device)
    if meta and not names:
        names = list(there)
    for name in names:
        if name not in there and f"{name}.0" not in there:
            raise LoadFailed(f"there is no device {name!r} here; there are: {', '.join(there)}")
    return names


def apply_properties(core: ov.Core, device: str, properties: Mapping[str, Json]) -> HeldProperties:
    """What the devices behind a device string really hold when these properties are asked for.

    The pipeline hides its compiled model, so a trifling model is compiled for the same device
    string with the same properties and asked. What cannot be read back is returned as asked. Raises
    LoadFailed where a property is unknown, its value is not taken, or another one is held instead.
    """
    names = physical_devices(core, device)
    meta, _ = listed_devices(device)
    of_meta = _writable(core, meta) if meta else frozenset()
    writable = {name: _writable(core, name) for name in names}
    _refuse_unknown(device, properties, [of_meta, *writable.values()])
    compiled = _compiled(core, device, properties)
    told = _told_of_devices(compiled) if meta else {}
    states: dict[str, Settings] = {}
    if meta:
        states[meta] = _state(compiled, of_meta)
    for name in names:
        told_of_it = told.get(name) or told.get(f"{name}.0")
        if told_of_it is None:
            own = {p: value for p, value in properties.items() if p in writable[name]}
            states[name] = _state(
                compiled if not meta else _compiled(core, name, own), writable[name]
            )
        else:
            states[name] = {p: _plain(v) for p, v in told_of_it.items() if p in writable[name]}
    asked = {
        name: _held(name, value, [meta] if name in of_meta else names, states)
        for name, value in properties.items()
    }
    return HeldProperties(asked, states)


def memory_bytes(core: ov.Core, device: str) -> int | None:
    """The memory of the devices behind a device string together; None where one does not tell."""
    sizes = [_memory_of(core, name) for name in set(physical_devices(core, device))]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _memory_of(core: ov.Core, name: str) -> int | None:
    kind = name.partition(".")[0]
    if kind == "CPU":
        return _host_memory_bytes()
    try:
        return int(core.get_property(name, _MEMORY[kind]))
    except (KeyError, RuntimeError, ValueError):
        return None


def _host_memory_bytes() -> int | None:
    """What this process may have: the machine's memory, or less where a container bounds it."""
    sizes = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = Path("/proc/meminfo").read_text().splitlines()[0]
        sizes.append(int(first.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # "max" is no bound
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(sizes, default=None)


def _writable(core: ov.Core, device: str) -> frozenset[str]:
    supported = dict(core.get_property(device, "SUPPORTED_PROPERTIES"))
    return frozenset(name for name, mode in supported.items() if mode == "RW")


def _refuse_unknown(
    device: str, properties: Mapping[str, Json], known: list[frozenset[str]]
) -> None:
    every = frozenset().union(*known) | _WRITE_ONLY
    for name in properties:
        if name not in every:
            near = difflib.get_close_matches(name, sorted(every), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise LoadFailed(f"runtime_config.{name}: no property of {device}{hint}")


def _compiled(core: ov.Core, device: str, properties: Mapping[str, Json]) -> ov.CompiledModel:
    try:
        return core.compile_model(_trifle(), device, dict(properties))
    except RuntimeError as error:
        # One by one they show which it is.
        for name, value in properties.items() if len(properties) > 1 else ():
            _compiled(core, device, {name: value})
        named = "".join(f".{name}" for name in properties if len(properties) == 1)
        values = ", ".join(map(repr, properties.values()))
        raise LoadFailed(
            f"runtime_config{named}: {device} does not take {values}: {_last_line(error)}"
        ) from error


def _told_of_devices(compiled: ov.CompiledModel) -> dict[str, dict[str, Any]]:
    try:
        return dict(compiled.get_property("DEVICE_PROPERTIES"))
    except RuntimeError:
        return {}


def _state(compiled: ov.CompiledModel, names: frozenset[str]) -> Settings:
    state: Settings = {}
    for name in sorted(names):
        with contextlib.suppress(RuntimeError):  # some are settings of the plugin alone
            state[name] = _plain(compiled.get_property(name))
    return state


def _held(name: str, asked: Json, holders: list[str], states: Mapping[str, Settings]) -> Json:
    """What the holders hold of a property; as asked, where none of them tells."""
    held = asked
    for holder in holders:
        if name in states[holder]:
            held = states[holder][name]
            any_will_do = (name, _canonical(asked)) in _ANY
            if not any_will_do and _canonical(held) != _canonical(asked):
                raise LoadFailed(
                    f"runtime_config.{name}: {asked!r} was asked for, {holder} holds {held!r}"
                )
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


def _last_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[-1].strip()
