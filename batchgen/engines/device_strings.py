"""Device strings as OpenVINO writes them, read without OpenVINO.

CPU   GPU   GPU.1   GPU.1.0   NPU            one device (of a card's tiles, one)
HETERO:GPU.0,CPU   MULTI:GPU.0,GPU.1         one model over several
AUTO   AUTO:GPU,CPU   AUTO:-CPU              the runtime chooses, among these, or not these
"""

import difflib
import re
from dataclasses import dataclass

from batchgen.domain.errors import InvalidRequest

_ONE = re.compile(r"(CPU|GPU|NPU)((\.\d{1,3}){0,2})")
_COMPOSITE = ("AUTO", "HETERO", "MULTI")
_KNOWN = ("CPU", "GPU", "NPU", *_COMPOSITE)


@dataclass(frozen=True, slots=True)
class DeviceString:
    """`policy` is None for one device. `without` are those that AUTO must not choose."""

    policy: str | None
    names: tuple[str, ...]
    without: tuple[str, ...] = ()

    @property
    def first(self) -> str | None:
        """The device whose worker serves it; None where the runtime is free to choose."""
        return self.names[0] if self.names else None


def parse_device(text: str, *, param: str = "device") -> DeviceString:
    """Raises InvalidRequest with the reason and the mend."""
    policy, colon, listed = text.partition(":")
    if policy == "BATCH":
        raise _wrong(text, "this engine batches by itself: leave 'BATCH:' out", param)
    if policy not in _COMPOSITE:
        if not _ONE.fullmatch(text):
            raise _wrong(text, _nearest(policy), param)
        return DeviceString(None, (text,))
    if not colon and policy == "AUTO":
        return DeviceString(policy, ())
    if not listed:
        raise _wrong(text, f"{policy} needs its devices, as in {policy}:GPU.0,CPU", param)
    names: list[str] = []
    without: list[str] = []
    for part in listed.split(","):
        name = part.removeprefix("-")
        if not _ONE.fullmatch(name):
            raise _wrong(text, f"'{part}' in it is no device", param)
        if part in (*names, *(f"-{other}" for other in without)):
            raise _wrong(text, f"{part} is in it twice", param)
        if part == name:
            names.append(name)
        elif policy == "AUTO":
            without.append(name)
        else:
            raise _wrong(text, f"'{part}': only AUTO can leave devices out", param)
    return DeviceString(policy, tuple(names), tuple(without))


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.upper(), _KNOWN, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return "known: CPU, GPU, GPU.<n>, NPU, AUTO[:…], HETERO:…, MULTI:…"


def _wrong(text: str, reason: str, param: str) -> InvalidRequest:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return InvalidRequest(f"'{shown[:100]}' is no device: {reason}", param=param)
