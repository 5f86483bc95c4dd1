"""Register models, and resolve what a job names to the engine spec that will run it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.ids import new_model_id
from batchgen.domain.jobs import Model
from batchgen.engines.fingerprint import fingerprint
from batchgen.engines.registry import spec_faults
from batchgen.engines.spec import (
    EngineSpec,
    OpenVinoSpec,
    SimulatedSpec,
    decode_spec,
    encode_spec,
)
from batchgen.settings import Settings
from batchgen.storage import models
from batchgen.storage.session import Database

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
_POOL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# Not for data: what lies there is made up by the kernel.
_NEVER = (Path("/proc"), Path("/sys"), Path("/dev"))
# What only the server decides.
_RESERVED = ("engine", "path", "device", "cache_dir")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What will run a job: the pinned revision, and its engine spec with the job's overrides."""

    model: Model
    spec: EngineSpec
    fingerprint: str


def register(
    database: Database,
    settings: Settings,
    *,
    name: str,
    spec: Mapping[str, Any],
    pool: str = "default",
    device: str | None = None,
) -> Model:
    """A new revision under `name`, or the current one where nothing differs.

    `device` binds its jobs to workers of that device. Raises InvalidRequest naming the place.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidRequest(
            f"model name '{name}' may hold letters, digits and . _ : / @ -, at most 128",
            param="name",
        )
    if not _POOL.fullmatch(pool):
        raise InvalidRequest(
            f"pool '{pool}' may hold lower-case letters, digits, _ and -, at most 63", param="pool"
        )
    if spec.get("cache_dir") is not None:
        raise InvalidRequest("cache_dir is derived by the server; leave it out", param="cache_dir")
    typed = _with_checked_paths(decode_spec(dict(spec)), settings)
    _refuse_faults(typed)
    print_of_spec = fingerprint(typed)
    with database.unit_of_work() as tx:
        earlier = models.revisions(tx, name)
        if earlier and earlier[0].retired_at is None:
            last = earlier[0]
            if (last.fingerprint, last.pool, last.device) == (print_of_spec, pool, device):
                return last
        models.insert(
            tx,
            model_id=new_model_id(),
            name=name,
            spec=encode_spec(typed),
            fingerprint=print_of_spec,
            content_hash=None,
            pool=pool,
            device=device,
        )
        return models.current(tx, name)


def resolve(tx: Connection, name: str, overrides: Mapping[str, Any]) -> Resolved:
    """The current revision with a job's `overrides` merged in. Raises NotFound or
    InvalidRequest.
    """
    model = models.current(tx, name)
    for reserved in _RESERVED:
        if reserved in overrides:
            raise InvalidRequest(
                f"a job cannot override '{reserved}': register a model for that",
                param=f"engine.{reserved}",
            )
    spec = decode_spec(_merged(model.spec, overrides))
    _refuse_faults(spec)
    return Resolved(model=model, spec=spec, fingerprint=fingerprint(spec))


def _refuse_faults(spec: EngineSpec) -> None:
    faults = spec_faults(spec)
    if faults:
        raise InvalidRequest("; ".join(faults), code="unusable_engine", param="engine")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            out[key] = _merged(below, value)
        else:
            out[key] = value
    return out


def _with_checked_paths(spec: EngineSpec, settings: Settings) -> EngineSpec:
    match spec:
        case OpenVinoSpec():
            path = _model_directory(spec.path, settings, holds="openvino_model.xml")
            changed: dict[str, Any] = {"path": str(path)}
            if spec.draft is not None:
                draft = _model_directory(spec.draft.path, settings, holds="openvino_model.xml")
                changed["draft"] = {**encode_spec(spec)["draft"], "path": str(draft)}
        case SimulatedSpec():
            if spec.path is None:
                return spec
            changed = {"path": str(_model_directory(spec.path, settings, holds="tokenizer.json"))}
    return decode_spec({**encode_spec(spec), **changed})


def _model_directory(given: str, settings: Settings, *, holds: str) -> Path:
    if "\0" in given:
        raise InvalidRequest("a path must not hold the character NUL", param="path")
    path = Path(given).expanduser()
    if not path.is_absolute():
        raise InvalidRequest(f"model path '{given}' must be absolute", param="path")
    path = path.resolve()
    roots = [Path(root).resolve() for root in settings.model_roots.split(":") if root]
    if roots and not any(path.is_relative_to(root) for root in roots):
        raise InvalidRequest(
            f"model path '{given}' is not under an allowed root ({', '.join(map(str, roots))}); "
            "BATCHGEN_MODEL_ROOTS of the server names them",
            param="path",
        )
    if any(path.is_relative_to(never) for never in _NEVER) or not path.is_dir():
        raise InvalidRequest(f"model path '{given}' is no directory on the server", param="path")
    if not (path / holds).is_file():
        raise InvalidRequest(
            f"model path '{given}' holds no {holds}: export the model first "
            "(optimum-cli export openvino …)",
            param="path",
        )
    return path
