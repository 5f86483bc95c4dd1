"""Register models, and resolve what a job names to the engine spec that will run it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.ids import new_model_id
from batchgen.domain.jobs import Device, Model
from batchgen.engines.fingerprint import fingerprint
from batchgen.engines.openvino.model_dir import MODEL_XML, VISION_XML, adapter_hash
from batchgen.engines.registry import endpoints, memory_fault, spec_faults, spec_warnings
from batchgen.engines.spec import (
    EngineSpec,
    OpenVinoEmbeddingSpec,
    OpenVinoSpec,
    SimulatedSpec,
    decode_spec,
    encode_spec,
)
from batchgen.services import model_content, placement
from batchgen.services.model_content import Content
from batchgen.services.model_files import adapter_file, code_that_is_not_run, model_directory
from batchgen.settings import Settings
from batchgen.storage import devices, models
from batchgen.storage.session import Database

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
_POOL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# What only the server decides.
_DERIVED = ("cache_dir", "content_hash", "draft.content_hash", "lora.content_hash")
# What only a registration decides: a job names nothing on the machines.
_REGISTERED = ("engine", "path", "device", "draft.path", "lora.path")


@dataclass(frozen=True, slots=True)
class Asked:
    """A model as somebody wants it. `device` is what it runs on, by one string for engine and
    workers.
    """

    spec: Mapping[str, Any]
    pool: str = "default"
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that can be registered: checked, placed, its files looked at."""

    name: str
    spec: EngineSpec
    fingerprint: str
    pool: str
    device: str | None
    content: Content

    def is_revision(self, model: Model) -> bool:
        """Whether the revision is this model already: the same settings and the same files."""
        settings = (self.fingerprint, self.pool, self.device)
        if settings != (model.fingerprint, model.pool, model.device):
            return False
        if model.seal is None or self.content.seal == model.seal:
            return True
        known = (self.content.model, self.content.draft)
        return known == (model.content_hash, model.draft_content_hash) and known[0] is not None


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

    Raises InvalidRequest naming the place.
    """
    with database.unit_of_work() as tx:
        live = devices.live(tx, lease_s=settings.lease_s)
    prepared = prepare(name, Asked(spec, pool, device), settings, live)
    with database.unit_of_work() as tx:
        return store(tx, prepared)


def prepare(name: str, asked: Asked, settings: Settings, live: Sequence[Device]) -> Prepared:
    """What would be registered; nothing is written. Raises InvalidRequest naming the place."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidRequest(
            f"model name '{name}' may hold letters, digits and . _ : / @ -, at most 128",
            param="name",
        )
    if not _POOL.fullmatch(asked.pool):
        raise InvalidRequest(
            f"pool '{asked.pool}' may hold lower-case letters, digits, _ and -, at most 63",
            param="pool",
        )
    _refuse_derived(asked.spec)
    spec, device = placement.place(decode_spec(dict(asked.spec)), asked.device, asked.pool, live)
    spec = _with_checked_paths(spec, settings)
    _refuse_faults(spec, device)
    return Prepared(
        name=name,
        spec=spec,
        fingerprint=fingerprint(spec),
        pool=asked.pool,
        device=device,
        content=model_content.look(spec, settings),
    )


def store(tx: Connection, prepared: Prepared) -> Model:
    """A new revision, or the current one where it is this model already."""
    models.lock_name(tx, prepared.name)
    content = prepared.content
    earlier = models.revisions(tx, prepared.name)
    if earlier and earlier[0].retired_at is None and prepared.is_revision(earlier[0]):
        last = earlier[0]
        if content.seal is not None and content.seal != last.seal:
            models.reseal(tx, last.id, content.seal)
        if content.model is not None:
            models.set_content(tx, last.id, content.model, content.draft)
        return models.get(tx, last.id)
    models.insert(
        tx,
        model_id=new_model_id(),
        name=prepared.name,
        spec=encode_spec(prepared.spec),
        fingerprint=prepared.fingerprint,
        content_hash=content.model,
        draft_content_hash=content.draft,
        seal=content.seal,
        pool=prepared.pool,
        device=prepared.device,
    )
    return models.current(tx, prepared.name)


def warnings(tx: Connection, settings: Settings, model: Model) -> list[str]:
    """What somebody should know of a registered model as things are now."""
    spec = decode_spec(dict(model.spec))
    live = devices.live(tx, lease_s=settings.lease_s)
    out = remarks(spec, model.device, model.pool, live)
    if (too_large := _too_large(tx, spec, model)) is not None:
        out.insert(0, too_large)
    if files := model_content.changed_files(model):
        out.insert(0, _changed(model, files))
    return out


def remarks(spec: EngineSpec, device: str | None, pool: str, live: Sequence[Device]) -> list[str]:
    """What of the fleet and the model's files is not as one might think."""
    out = [*spec_warnings(spec), *placement.remarks(spec, device, pool, live)]
    for directory in model_content.directories(spec).values():
        out += code_that_is_not_run(directory)
    return out


def resolve(
    tx: Connection, name: str, overrides: Mapping[str, Any], endpoint: str | None = None
) -> Resolved:
    """The current revision with a job's `overrides` merged in, able to serve `endpoint` (None:
    whichever it can). Raises NotFound or InvalidRequest.
    """
    model = models.current(tx, name)
    for place in (*_REGISTERED, *_DERIVED):
        if _names(overrides, place):
            raise InvalidRequest(
                f"a job cannot override '{place}': register a model for that",
                param=f"engine.{place}",
            )
    if files := model_content.changed_files(model):
        raise InvalidRequest(_changed(model, files), code="model_changed", param="model")
    spec = decode_spec(_merged(model.spec, overrides))
    if endpoint is not None and endpoint not in endpoints(spec):
        raise InvalidRequest(
            f"model '{name}' serves {', '.join(sorted(endpoints(spec)))}, not {endpoint}",
            code="unsupported_endpoint",
            param="endpoint",
        )
    placement.place(spec, None, model.pool, ())
    _refuse_faults(spec, model.device)
    if (too_large := _too_large(tx, spec, model)) is not None:
        raise InvalidRequest(too_large, code="unusable_engine", param="engine")
    spec = model_content.pinned(spec, model)
    return Resolved(model=model, spec=spec, fingerprint=fingerprint(spec))


def _changed(model: Model, files: list[str]) -> str:
    return (
        f"files of model '{model.name}' have changed since revision {model.revision} was "
        f"registered ({', '.join(files[:3])}{', …' if len(files) > 3 else ''}): register it again, "
        "which makes a new revision where their content differs"
    )


def _refuse_derived(spec: Mapping[str, Any]) -> None:
    if "trust_remote_code" in spec:
        raise InvalidRequest(
            "there is no trust_remote_code: code in a model's directory is never run",
            param="trust_remote_code",
        )
    for place in _DERIVED:
        if _names(spec, place, but_null=True):
            mend = "set `cache` to false to go without" if place == "cache_dir" else "leave it out"
            raise InvalidRequest(f"{place} is derived by the server; {mend}", param=place)


def _names(tree: Mapping[str, Any], place: str, *, but_null: bool = False) -> bool:
    """Whether the setting is given; with `but_null`, a null does not count."""
    value: Any = tree
    for name in place.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return not (but_null and value is None)


def _refuse_faults(spec: EngineSpec, device: str | None) -> None:
    """`device`: whose workers serve it, which is what the engine runs on unless the spec says."""
    faults = spec_faults(msgspec.structs.replace(spec, device=spec.device or device))
    if faults:
        raise InvalidRequest("; ".join(faults), code="unusable_engine", param="engine")


def _too_large(tx: Connection, spec: EngineSpec, model: Model) -> str | None:
    """Why it fits into no device that could serve it, where they have told their memory."""
    if isinstance(spec, OpenVinoSpec) and spec.device not in (None, model.device):
        return None  # an engine over several devices, or over another than its worker's
    return memory_fault(spec, devices.largest_memory_bytes(tx, model.pool, model.device))


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
            path = model_directory(spec.path, settings, holds=MODEL_XML, or_else=VISION_XML)
            changed: dict[str, Any] = {"path": str(path)}
            if spec.draft is not None:
                draft = model_directory(
                    spec.draft.path, settings, holds=MODEL_XML, param="draft.path"
                )
                changed["draft"] = {**encode_spec(spec)["draft"], "path": str(draft)}
            if spec.lora is not None:
                lora = adapter_file(spec.lora.path, settings, param="lora.path")
                changed["lora"] = {
                    **encode_spec(spec)["lora"],
                    "path": str(lora),
                    "content_hash": adapter_hash(lora),
                }
        case OpenVinoEmbeddingSpec():
            path = model_directory(spec.path, settings, holds=MODEL_XML)
            changed = {"path": str(path)}
        case SimulatedSpec():
            if spec.path is None:
                return spec
            changed = {"path": str(model_directory(spec.path, settings, holds="tokenizer.json"))}
    return decode_spec({**encode_spec(spec), **changed})
