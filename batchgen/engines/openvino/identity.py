"""What the compiled model of a spec depends on here: content, devices, drivers, versions."""

import contextlib
import hashlib
from pathlib import Path

import openvino as ov
import openvino_genai as genai

from batchgen.engines.compile_identity import CompileIdentity, PhysicalDevice
from batchgen.engines.openvino.device import physical_devices
from batchgen.engines.openvino.model_dir import content_hash, read_facts
from batchgen.engines.spec import Json, OpenVinoSpec

# They decide what is written although no device counts them among its caching properties.
_ALWAYS = frozenset({"CACHE_MODE", "ENABLE_WEIGHTLESS", "MODEL_DISTRIBUTION_POLICY"})
_DRIVER_PROPERTIES = {"GPU": "GPU_DRIVER_VERSION", "NPU": "NPU_DRIVER_VERSION"}
_PARTS = ("model", "language_model", "text_embeddings_model", "vision_embeddings_model")
_WEIGHTS = tuple(f"openvino_{part}.{kind}" for part in _PARTS for kind in ("xml", "bin"))


def compile_identity(spec: OpenVinoSpec, hashes: Path | None) -> CompileIdentity:
    """Raises LoadFailed where there is no such model or device.

    `hashes` is a directory where content hashes are kept between processes, for files that have not
    changed; None: everything is read.
    """
    model_dir = Path(spec.path)
    read_facts(model_dir)
    core = ov.Core()
    device = spec.device or "CPU"
    names = physical_devices(core, device)
    draft = spec.draft
    if draft is not None:
        read_facts(Path(draft.path))
        names += physical_devices(core, draft.device or device)
    asked = dict(spec.runtime_config)
    if spec.kv_cache_precision is not None:
        asked["KV_CACHE_PRECISION"] = spec.kv_cache_precision
    return CompileIdentity(
        model_hash=content_hash(model_dir, _noted(hashes, model_dir)),
        draft_hash=None
        if draft is None
        else content_hash(Path(draft.path), _noted(hashes, Path(draft.path))),
        device=_without_ordinals(device, names),
        devices=[_physical(core, name) for name in names],
        libraries={"openvino": ov.__version__, "openvino-genai": genai.__version__},
        properties=_compiled_in(core, names, asked),
        graph=_graph(spec),
    )


def _graph(spec: OpenVinoSpec) -> dict[str, Json]:
    """Measured: of the scheduler's settings these, and no sizes, change what is compiled."""
    scheduler = spec.scheduler_config
    eviction, sparse = scheduler.cache_eviction, scheduler.sparse_attention
    evicts, is_sparse = bool(scheduler.use_cache_eviction), bool(scheduler.use_sparse_attention)
    draft = spec.draft
    return {
        "evicts": evicts,
        "aggregation": eviction.aggregation_mode if evicts and eviction else None,
        "rotates": bool(evicts and eviction and eviction.apply_rotation),
        "sparse": (sparse.mode if sparse else None) or "default" if is_sparse else None,
        "model": _stamp(Path(spec.path)),
        "draft": None if draft is None else f"{draft.kind} {_stamp(Path(draft.path))}",
        "lora": None
        if spec.lora is None
        else f"{spec.lora.alpha} {_stamp_of(Path(spec.lora.path))}",
    }


def _stamp_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        stat = path.stat()
        return f"{path} {stat.st_size} {stat.st_mtime_ns}"
    return str(path)


def _stamp(model_dir: Path) -> str:
    """OpenVINO takes a model at another path, or with another time, for another model."""
    of_files = []
    for name in _WEIGHTS:
        with contextlib.suppress(OSError):
            stat = (model_dir / name).stat()
            of_files.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
    return " ".join([str(model_dir), *of_files])


def _compiled_in(core: ov.Core, names: list[str], asked: dict[str, Json]) -> dict[str, Json]:
    """Of the properties asked for, those that the devices count as part of a compiled model."""
    counted = set(_ALWAYS)
    for name in names:
        try:
            counted |= set(core.get_property(name, "CACHING_PROPERTIES"))
        except RuntimeError:  # it does not tell: then all may count
            return asked
    return {name: value for name, value in asked.items() if name in counted}


def _physical(core: ov.Core, name: str) -> PhysicalDevice:
    kind = name.partition(".")[0]
    of_driver = _property(core, name, _DRIVER_PROPERTIES.get(kind, ""))
    plugin = core.get_versions(name)
    return PhysicalDevice(
        kind=kind,
        name=_property(core, name, "FULL_DEVICE_NAME"),
        architecture=_property(core, name, "DEVICE_ARCHITECTURE"),
        driver=of_driver or ", ".join(sorted({v.build_number for v in plugin.values()})),
    )


def _property(core: ov.Core, device: str, name: str) -> str:
    """A property as text; empty where the device has none of that name."""
    try:
        return str(core.get_property(device, name)) if name else ""
    except RuntimeError:
        return ""


def _without_ordinals(device: str, names: list[str]) -> str:
    """`HETERO:GPU.0,CPU` as `HETERO:GPU,CPU`: which card of a kind it is makes no difference."""
    meta, colon, _ = device.partition(":")
    kinds = ",".join(name.partition(".")[0] for name in names)
    return f"{meta}:{kinds}" if colon else kinds


def _noted(hashes: Path | None, model_dir: Path) -> Path | None:
    if hashes is None:
        return None
    name = hashlib.blake2b(str(model_dir).encode(), digest_size=16).hexdigest()
    path = hashes / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return path
