"""Which devices this machine has that an engine can drive.

Drivers are asked in a child process with a time limit: a driver that crashes or hangs takes the
child with it, and the supervisor never loads an engine's runtime.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_OPENVINO_PROBE = """
import json, openvino
core = openvino.Core()
names = [d for d in core.available_devices if d.startswith("GPU")]
print(json.dumps([[d, str(core.get_property(d, "FULL_DEVICE_NAME"))] for d in names]))
"""


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
            found = answer
    if any(dev.glob("nvidia[0-9]*")):
        unusable.append(
            f"an NVIDIA GPU is there ({dev}/nvidia*), but no engine of this version drives it"
        )
    return Devices(found or (CPU,), tuple(unusable))


def _ask_openvino(timeout_s: float) -> tuple[FoundDevice, ...] | str:
    """The GPUs that OpenVINO sees, or why it sees none."""
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
    found = tuple(FoundDevice(*pair) for pair in json.loads(lines[-1]))
    return found or (
        "OpenVINO sees no GPU: install the driver's compute runtime, and let this user read the "
        "device (group `render`)"
    )
