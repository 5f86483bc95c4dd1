"""Whether a model's files are still those that were registered: by hash, and by a cheap seal.

A revision is immutable, so its files must be, too. Reading them takes minutes where they are large:
small models are hashed while they are registered, large ones afterwards. Until then, and at every
submission, their sizes and times tell whether they have changed; an engine compares the hash.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from batchgen.domain.jobs import Model
from batchgen.engines.openvino.model_dir import (
    adapter_files,
    content_files,
    content_hash,
)
from batchgen.engines.spec import EngineSpec, OpenVinoSpec, SimulatedSpec, decode_spec
from batchgen.settings import Settings
from batchgen.storage import models
from batchgen.storage.session import Database

log = structlog.get_logger(__name__)

_DRAFT, _LORA = "draft/", "lora/"
# About a third of a second.
_AT_ONCE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Content:
    """What lies in a model's directories on this machine. `model` None: not read yet."""

    seal: Mapping[str, Any] | None
    model: str | None = None
    draft: str | None = None


def look(spec: EngineSpec, settings: Settings) -> Content:
    """The seal, and the hashes where the files are small."""
    seal = _seal(spec)
    if seal is None or sum(stamp[0] for stamp in seal.values() if stamp) > _AT_ONCE_BYTES:
        return Content(seal)
    return Content(seal, *_hashes(spec, settings))


def changed_files(model: Model) -> list[str]:
    """The files that are others than when the revision was registered, as far as this shows here
    without reading them.
    """
    if model.seal is None:
        return []
    now = _seal(decode_spec(dict(model.spec)))
    if now is None:
        return []  # they lie on other machines, whose engines compare the hash
    names = {*model.seal, *now}
    return sorted(n for n in names if list(model.seal.get(n, ())) != list(now.get(n, ())))


def fill(database: Database, settings: Settings, model: Model) -> Model:
    """The revision with its content hashes, read now if they were not known yet. May take minutes.

    They stay unknown where the files lie elsewhere, cannot be read, or have changed.
    """
    spec = decode_spec(dict(model.spec))
    if model.content_hash is not None or not directories(spec) or changed_files(model):
        return model
    try:
        found = _hashes(spec, settings)
    except OSError as error:
        log.warning("model_not_hashed", model=model.name, reason=str(error))
        return model
    if _seal(spec) is None or changed_files(model):
        return model
    with database.unit_of_work() as tx:
        models.set_content(tx, model.id, *found)
        return models.get(tx, model.id)


def fill_all(database: Database, settings: Settings) -> None:
    """The same for every model in use."""
    with database.unit_of_work() as tx:
        every = models.every(tx)
    for model in every:
        fill(database, settings, model)


def pinned(spec: EngineSpec, model: Model) -> EngineSpec:
    """The spec of a job on this revision: its engine loads these files or none."""
    if isinstance(spec, SimulatedSpec) or model.content_hash is None:
        return spec
    changes: dict[str, Any] = {"content_hash": model.content_hash}
    if isinstance(spec, OpenVinoSpec) and spec.draft is not None:
        changes["draft"] = msgspec.structs.replace(
            spec.draft, content_hash=model.draft_content_hash
        )
    return msgspec.structs.replace(spec, **changes)


def directories(spec: EngineSpec) -> dict[str, Path]:
    """The model's own under "", its draft's under "draft/"."""
    out = {} if spec.path is None else {"": Path(spec.path)}
    if isinstance(spec, OpenVinoSpec) and spec.draft is not None:
        out[_DRAFT] = Path(spec.draft.path)
    return out


def _seal(spec: EngineSpec) -> dict[str, list[int]] | None:
    """Sizes and times; None where a directory is not on this machine."""
    places = directories(spec)
    if not places or not all(path.is_dir() for path in places.values()):
        return None
    files = {p + f.name: f for p, directory in places.items() for f in content_files(directory)}
    if isinstance(spec, OpenVinoSpec) and spec.lora is not None:
        adapter = adapter_files(Path(spec.lora.path))
        if not adapter:
            return None
        files |= {_LORA + file.name: file for file in adapter}
    return {name: _stamp(file) for name, file in files.items()}


def _stamp(file: Path) -> list[int]:
    """Size and time; of a file that has gone, or a link to nothing, neither."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return []
    return [stat.st_size, stat.st_mtime_ns]


def _hashes(spec: EngineSpec, settings: Settings) -> tuple[str, str | None]:
    hashes = {
        prefix: content_hash(directory, _notes(settings, directory))
        for prefix, directory in directories(spec).items()
    }
    return hashes[""], hashes.get(_DRAFT)


def _notes(settings: Settings, directory: Path) -> Path | None:
    """Where the hashes of files that have not changed are kept; None where nothing can be."""
    name = hashlib.blake2b(str(directory).encode(), digest_size=12).hexdigest()
    notes = settings.data_dir / "cache" / "contents" / name
    try:
        notes.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return notes
