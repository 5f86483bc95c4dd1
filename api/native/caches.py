"""Compile caches of all hosts: listed, and pruned, by admins."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.deps import AnAdmin, Here
from api.values import Body, epoch
from batchgen.services import caches
from batchgen.services.caches import Judged, Wish

router = APIRouter(prefix="/v1/caches", tags=["caches"], dependencies=[AnAdmin])


class CacheObject(BaseModel):
    """An entry: what was compiled for one model content, device, driver, set of library versions
    and of properties.

    `stale` says why it is of no use any more, null where it may still be. `reason` says how a
    `quarantined` or `rejected` entry came to be one; a rejected one holds nothing. `models` are
    registered models at the path that it was made from. `busy` entries are never removed. `leaving`
    ones are removed by a worker of their host within seconds.
    """

    id: str
    object: Literal["cache"] = "cache"
    directory_id: str
    directory: str
    host: str
    state: str
    reason: str | None
    stale: str | None
    bytes: int
    files: int
    models: list[str]
    model_path: str
    model_hash: str
    device: str
    devices: list[dict[str, str]]
    libraries: dict[str, str]
    properties: dict[str, Any]
    created_at: int
    last_used_at: int
    unused_s: float
    writer: str | None
    in_use_by: list[str]
    busy: bool
    leaving: bool

    @classmethod
    def of(cls, found: Judged) -> "CacheObject":
        entry = found.entry
        made_for = entry.identity
        return cls(
            id=entry.key.name,
            directory_id=entry.key.root_id,
            directory=entry.root_path,
            host=entry.host,
            state=entry.state,
            reason=entry.reason,
            stale=found.stale,
            bytes=entry.bytes,
            files=entry.n_files,
            models=list(found.models),
            model_path=entry.model_path,
            model_hash=made_for["model_hash"],
            device=made_for["device"],
            devices=made_for["devices"],
            libraries=made_for["libraries"],
            properties=made_for["properties"],
            created_at=epoch(entry.created_at),
            last_used_at=epoch(entry.last_used_at),
            unused_s=entry.age_s,
            writer=entry.writer,
            in_use_by=list(entry.in_use_by),
            busy=entry.busy,
            leaving=entry.doomed,
        )


class CacheList(BaseModel):
    """Entries, the last used first."""

    object: Literal["list"] = "list"
    data: list[CacheObject]


class Pruning(Body):
    """What to remove: each bound by itself. At least one is needed.

    `max_bytes` is what may stay of each directory: what was not used for longest goes. `stale`
    entries are those that are of no use any more, quarantined ones too.
    """

    max_bytes: int | None = Field(None, ge=0)
    older_than_s: int | None = Field(None, ge=0)
    stale: bool = False
    dry_run: bool = False


class Pruned(BaseModel):
    """What is removed, or would be."""

    object: Literal["cache.pruning"] = "cache.pruning"
    dry_run: bool
    bytes: int
    data: list[CacheObject]


@router.get("")
def list_caches(here: Here) -> CacheList:
    """All entries of all directories."""
    found = caches.judged(here.database, here.settings)
    return CacheList(data=[CacheObject.of(one) for one in found])


@router.post("/prune")
def prune_caches(body: Pruning, here: Here) -> Pruned:
    """Remove entries. None that an engine uses, or that is being written, is touched; the others
    are gone once a worker of their host has looked, which takes seconds.
    """
    wish = Wish(max_bytes=body.max_bytes, older_than_s=body.older_than_s, stale=body.stale)
    gone = caches.prune(here.database, here.settings, wish, dry_run=body.dry_run)
    return Pruned(
        dry_run=body.dry_run,
        bytes=sum(one.entry.bytes for one in gone),
        data=[CacheObject.of(one) for one in gone],
    )
