"""Which devices this machine has that an engine can drive.

Drivers are asked in a child process with a time limit: a driver that crashes or hangs takes the
child with it, and the supervisor never loads an engine's runtime.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from batchgen.domain.errors import InvalidRequest
from batchgen.engines.openvino.lint_devices import listed_devices
from batchgen.settings import Settings

_OPENVINO_PROBE = """
import json, openvino
core = openvino.Core()
def described(name):
    try:
        return str(core.get_property(name, "FULL_DEVICE_NAME"))
    except RuntimeError:
        return name
print(json.dumps([[name, described(name)] for name in core.available_devices]))
"""
# OpenVINO takes any number behind it for the processor: so several workers can share one.
_PROCESSOR = re.compile(r"CPU(\.\d+)?")


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device by the name its engine gives it, and what a person calls it."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices to serve, and why hardware that is there is not among them."""

    usable: tuple[FoundDevice, ...]
    unusable: tuple[str, ...] = ()


CPU = FoundDevice("CPU", "the processor")
_NO_GPU = (
    "OpenVINO sees no GPU: install the driver's compute runtime, and let this user read the device "
    "(group `render`)"
)


def discover_devices(*, dev: Path = Path("/dev"), timeout_s: float = 15.0) -> Devices:
    """The GPUs of this machine that an engine can drive, else its CPU.

    Takes milliseconds where no GPU has a node below `dev`, else one start of the engine's runtime.
    """
    unusable = []
    found: tuple[FoundDevice, ...] = ()
    if any((dev / "dri").glob("renderD*")):
        answer = _ask_openvino(timeout_s)
        if isinstance(answer, str):
            unusable.append(f"a graphics device is there ({dev}/dri), but {answer}")
        else:
            found = tuple(device for device in answer if device.name.startswith("GPU"))
            unusable += [] if found else [f"a graphics device is there ({dev}/dri), but {_NO_GPU}"]
    if any(dev.glob("nvidia[0-9]*")):
        unusable.append(
            f"an NVIDIA GPU is there ({dev}/nvidia*), but no engine of this version drives it"
        )
    return Devices(found or (CPU,), tuple(unusable))


def check_name(name: str, settings: Settings, *, timeout_s: float = 15.0) -> None:
    """Raises InvalidRequest for a device that neither machine nor engine has, naming those there
    are.

    Not looked at where engines run in an environment of their own, which alone would know.
    """
    if settings.host_command:
        return
    if _PROCESSOR.fullmatch(name):
        return
    meta, listed = listed_devices(name)
    # AUTO may leave a device out (`-CPU`), BATCH gives a size (`GPU(4)`).
    parts = [part.lstrip("-").partition("(")[0] for part in listed]
    answer = _ask_openvino(timeout_s)
    there = [CPU.name] if isinstance(answer, str) else [device.name for device in answer]
    why = f" ({answer})" if isinstance(answer, str) else ""
    wrong = [part for part in parts if not _is_one_of(part, there)]
    if not parts and meta != "AUTO":
        wrong = [name]
    if wrong:
        raise InvalidRequest(
            f"there is no device '{wrong[0]}' on this machine: it has {', '.join(there)}{why}",
            param="device",
        )


def _is_one_of(name: str, there: Sequence[str]) -> bool:
    """GPU and GPU.0 are the same; GPU.1.0 is a part of GPU.1."""
    if _PROCESSOR.fullmatch(name):
        return True
    return any(
        known in (name, f"{name}.0") or f"{known}.0" == name or name.startswith(f"{known}.")
        for known in there
        if known != CPU.name
    )


def _ask_openvino(timeout_s: float) -> tuple[FoundDevice, ...] | str:
    """The devices that OpenVINO sees, or why it sees none."""
    if find_spec("openvino") is None:
        return "OpenVINO is not installed: `pip install 'batchgen[openvino]'`"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _OPENVINO_PROBE],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"OpenVINO does not answer in {timeout_s:g} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode != 0:
        return f"OpenVINO fails on it: {lines[-1] if lines else f'exit code {done.returncode}'}"
    return tuple(FoundDevice(*pair) for pair in json.loads(lines[-1]))
