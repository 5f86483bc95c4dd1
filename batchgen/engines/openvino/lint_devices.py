"""Device strings and the properties that belong to several devices, or to one kind of them."""

from collections.abc import Iterator

from batchgen.engines.spec import Json, OpenVinoSpec

META_DEVICES = frozenset({"HETERO", "AUTO", "MULTI", "BATCH"})
_POLICIES = {"PIPELINE_PARALLEL", "TENSOR_PARALLEL"}


def listed_devices(device: str) -> tuple[str, list[str]]:
    """A device string's meta device ("" for none) and the devices that it lists."""
    meta, _, listed = device.partition(":")
    if meta not in META_DEVICES:
        return "", [device]
    return meta, [name.strip() for name in listed.split(",") if name.strip()]


def may_be_cpu(device: str | None) -> bool:
    """Whether a CPU is among the devices; for a worker's own device (None) that shows later."""
    if device is None:
        return False
    meta, names = listed_devices(device)
    return "CPU" in names or (bool(meta) and not names)


def device_faults(spec: OpenVinoSpec) -> Iterator[str]:
    """What cannot be, whatever devices there are."""
    for where, device in (
        ("device", spec.device),
        ("draft.device", None if spec.draft is None else spec.draft.device),
    ):
        if device is not None:
            yield from _string_faults(where, device)
    properties = spec.runtime_config
    if "MODEL_DISTRIBUTION_POLICY" in properties:
        yield from _policy_faults(spec.device, properties["MODEL_DISTRIBUTION_POLICY"])
    if "OFFLOAD_RATIO" in properties:
        yield from _offload_faults(spec.device, properties["OFFLOAD_RATIO"])


def device_warnings(spec: OpenVinoSpec) -> Iterator[str]:
    """What works only if all of a model falls to devices of one kind."""
    meta, names = listed_devices(spec.device or "")
    kinds = {name.partition(".")[0] for name in names}
    if meta == "HETERO" and len(kinds) > 1:
        yield (
            f"continuous batching runs on one CPU or on GPUs: {spec.device} loads only where one "
            "kind of device holds the whole model; name GPUs only to split it"
        )


def _string_faults(where: str, device: str) -> Iterator[str]:
    meta, names = listed_devices(device)
    if not device.strip():
        yield f"{where} is empty: name a device (CPU, GPU, GPU.1, NPU), or leave it out"
    if meta == "MULTI":
        yield (
            f"{where} '{device}': continuous batching cannot run on MULTI; use HETERO to split a "
            "model, AUTO to have a device chosen, or a worker for each device"
        )
    elif meta in {"HETERO", "BATCH"} and not names:
        yield f"{where} '{device}' names no devices: write them as in {meta}:GPU.0,GPU.1"
    if len(set(names)) < len(names):
        yield f"{where} '{device}' names a device twice"


def _policy_faults(device: str | None, policy: Json) -> Iterator[str]:
    """HETERO splits a model by layers, a CPU of several sockets by tensors: neither does both."""
    name = "runtime_config.MODEL_DISTRIBUTION_POLICY"
    if not isinstance(policy, str) or policy not in _POLICIES:
        yield f'{name} must be the text "PIPELINE_PARALLEL" or "TENSOR_PARALLEL", not {policy!r}'
        return
    if device is None:
        return  # the worker's own, which may be of either kind
    meta, _ = listed_devices(device)
    if meta == "HETERO" and policy == "TENSOR_PARALLEL":
        yield (
            f"{name}: {device} takes PIPELINE_PARALLEL only; TENSOR_PARALLEL is for the sockets of "
            "one CPU (device CPU)"
        )
    elif meta != "HETERO" and policy == "PIPELINE_PARALLEL":
        yield f"{name} PIPELINE_PARALLEL has no effect on {device}: use HETERO:GPU.0,GPU.1 or so"


def _offload_faults(device: str | None, ratio: Json) -> Iterator[str]:
    name = "runtime_config.OFFLOAD_RATIO"
    if isinstance(ratio, bool) or not isinstance(ratio, int) or not 0 <= ratio <= 100:
        yield (
            f"{name} is the percentage of a mixture's expert weights kept off the GPU, a whole "
            f"number from 0 to 100, not {ratio!r}"
        )
    elif device is not None and not any(n.startswith("GPU") for n in listed_devices(device)[1]):
        yield f"{name} is a GPU's: {device} has no such property, leave it out"
