"""All models at once, as one text declares them: what would change, and the change.

Either every entry can be registered and all are, in one transaction, or nothing changes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.jobs import Model
from batchgen.engines.spec import encode_spec
from batchgen.services.models import Asked, Prepared, prepare, remarks, store
from batchgen.settings import Settings
from batchgen.storage import devices, models
from batchgen.storage.session import Database

_DEFAULT_ENGINE, _DEFAULT_POOL = "openvino", "default"
_AT = re.compile(r"at `\$\.([^`]+)`")


class Deed(StrEnum):
    """What becomes of a model."""

    ADD = "add"
    CHANGE = "change"
    KEEP = "keep"
    RETIRE = "retire"


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs, by its dotted name; None where it is not set."""

    setting: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Step:
    """One model's part of the plan. `revision` is the one in use: after, where it was applied."""

    name: str
    deed: Deed
    revision: int | None
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def apply(
    database: Database,
    settings: Settings,
    wanted: Mapping[str, Mapping[str, Any]],
    *,
    prune: bool = False,
    dry_run: bool = False,
) -> list[Step]:
    """Register every model in `wanted`; with `prune` retire all others. Sorted by name.

    An entry holds the engine's settings, and beside them `pool` and `device`. Raises
    InvalidRequest with a line for every bad entry, each beginning with its place.
    """
    with database.unit_of_work() as tx:
        live = devices.live(tx, lease_s=settings.lease_s)
    prepared = dict(_all_prepared(wanted, settings, live))
    with database.unit_of_work() as tx:
        for name in sorted(prepared):
            models.lock_name(tx, name)
        current = {model.name: model for model in models.every(tx)}
        steps = []
        for name, one in prepared.items():
            there = current.get(name)
            changes = _changes(one, there)
            deed = Deed.ADD if there is None else Deed.CHANGE if changes else Deed.KEEP
            revision = None if there is None else there.revision
            if not dry_run:
                revision = store(tx, one).revision
            noted = remarks(one.spec, one.device, one.pool, live)
            steps.append(Step(name, deed, revision, changes, noted))
        for name in current.keys() - prepared.keys() if prune else ():
            if not dry_run:
                models.retire(tx, name)
            steps.append(Step(name, Deed.RETIRE, current[name].revision))
    return sorted(steps, key=lambda step: step.name)


def _all_prepared(
    wanted: Mapping[str, Mapping[str, Any]], settings: Settings, live: list[Any]
) -> Iterator[tuple[str, Prepared]]:
    faults: list[tuple[str, InvalidRequest]] = []
    for name, entry in wanted.items():
        try:
            yield name, prepare(name, _asked(entry), settings, live)
        except InvalidRequest as error:
            faults.append((_place(name, error), error))
    if faults:
        raise InvalidRequest(
            "\n".join(f"{place}: {error.message}" for place, error in faults),
            code=faults[0][1].code,
            param=faults[0][0],
        )


def _asked(entry: Mapping[str, Any]) -> Asked:
    spec = {"engine": _DEFAULT_ENGINE, **entry}
    pool, device = spec.pop("pool", _DEFAULT_POOL), spec.pop("device", None)
    if not isinstance(pool, str):
        raise InvalidRequest("pool must be text", param="pool")
    if device is not None and not isinstance(device, str):
        raise InvalidRequest("device must be text", param="device")
    return Asked(spec, pool, device)


def _place(name: str, error: InvalidRequest) -> str:
    at = _AT.search(error.message)
    param = at.group(1) if at else error.param
    if param in (None, "name", "engine"):
        return f"models.{name}"
    return f"models.{name}.{param}"


def _changes(one: Prepared, there: Model | None) -> list[Change]:
    after = dict(_flat(encode_spec(one.spec))) | {"pool": one.pool, "device": one.device}
    if there is None:
        return [Change(n, None, v) for n, v in sorted(after.items()) if v not in (None, {}, [])]
    if one.is_revision(there):
        return []
    before = dict(_flat(there.spec)) | {"pool": there.pool, "device": there.device}
    out = [
        Change(name, before.get(name), after.get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    if one.content.seal != there.seal:
        out.append(Change("content_hash", there.content_hash, one.content.model))
    return out


def _flat(spec: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in spec.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        elif name != "device" or above:
            yield f"{above}{name}", value
        else:
            yield "spec.device", value
