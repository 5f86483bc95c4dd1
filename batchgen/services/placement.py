"""Which workers a model's jobs go to, and what the engine is told to run on.

A worker serves one device. A model for one device is bound to its workers; one over several devices
is bound to a worker of just that device string where there is one, else to the worker of the first
device in it, whose engine then drives them all.
"""

from collections.abc import Iterable, Sequence

import msgspec

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.jobs import Device
from batchgen.engines.device_strings import parse_device
from batchgen.engines.spec import EngineSpec, OpenVinoSpec, SimulatedSpec


def place(
    spec: EngineSpec, device: str | None, pool: str, live: Sequence[Device]
) -> tuple[EngineSpec, str | None]:
    """The spec with the engine's device, and the device whose workers serve it (None: any).

    Raises InvalidRequest where a device string is malformed.
    """
    if isinstance(spec, SimulatedSpec):
        return spec, device
    if spec.device is not None:
        parse_device(spec.device, param="spec.device")
    if isinstance(spec, OpenVinoSpec) and spec.draft is not None and spec.draft.device is not None:
        parse_device(spec.draft.device, param="draft.device")
    if device is None:
        return spec, None
    meant = parse_device(device)
    if meant.policy is None:
        return spec, device
    if spec.device not in (None, device):
        raise InvalidRequest(
            f"the engine's device is given twice: '{device}', and '{spec.device}' in the spec",
            param="device",
        )
    spec = msgspec.structs.replace(spec, device=device)
    served = {d.device for d in live if d.pool == pool}
    return spec, device if device in served else meant.first


def remarks(spec: EngineSpec, device: str | None, pool: str, live: Sequence[Device]) -> list[str]:
    """What of the fleet as it is now keeps the model from being served, naming what there is."""
    in_pool = {d.device for d in live if d.pool == pool}
    if not in_pool:
        return [
            f"no worker of pool '{pool}' is live: its jobs wait for one ({_those(live, pool=True)})"
        ]
    out = []
    if device is not None and device not in in_pool:
        out.append(
            f"no live worker of pool '{pool}' serves {device}: its jobs wait for one; there are: "
            f"{', '.join(sorted(in_pool))}"
        )
    served = {name for d in live for name in _names(d.device)}
    out += [
        f"{name} is served by no live worker; there are: {_those(live)}"
        for name in _accelerators(spec)
        if name not in served and name != device
    ]
    return out


def _accelerators(spec: EngineSpec) -> list[str]:
    """The devices that not every machine has."""
    if isinstance(spec, SimulatedSpec):
        return []
    asked = [spec.device]
    if isinstance(spec, OpenVinoSpec) and spec.draft is not None:
        asked.append(spec.draft.device)
    names = {name for text in asked if text is not None for name in parse_device(text).names}
    return sorted(names - {"CPU"})


def _names(device: str) -> set[str]:
    """What a worker's device may be called.

    One GPU alone is called GPU, of several the first is GPU.0: the same device.
    """
    try:
        names = parse_device(device).names
    except InvalidRequest:
        return {device}  # a worker of an engine that names its devices otherwise
    same = {"GPU": "GPU.0", "GPU.0": "GPU"}
    return {*names, *(same[name] for name in names if name in same)}


def _those(live: Iterable[Device], *, pool: bool = False) -> str:
    shown = sorted({f"{d.device} in pool {d.pool}" if pool else d.device for d in live})
    return ", ".join(shown) or "none"
