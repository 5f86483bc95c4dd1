"""Queries over compile caches: who may write an entry, who uses one, what is to be removed."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from batchgen.domain.caches import CacheDeed, CacheEntry, CacheKey, CacheState
from batchgen.domain.errors import LostLease
from batchgen.domain.ids import DeviceId, LeaseToken, new_lease_token
from batchgen.storage.tables import compile_cache_uses as uses
from batchgen.storage.tables import compile_caches as caches
from batchgen.storage.tables import devices

_FREE = {"writer": None, "writer_token": None, "writer_deed": None, "writer_until": None}
_HELD = and_(caches.c.writer_token.is_not(None), caches.c.writer_until > func.now())


def enter(
    tx: Connection,
    key: CacheKey,
    device_id: DeviceId,
    *,
    root_path: str,
    host: str,
    namespace: str,
    identity: Mapping[str, Any],
    model_path: str,
) -> bool:
    """The device uses the entry from now on, which keeps it from being removed; one that was to go
    stays. False while somebody is removing it.
    """
    tx.execute(
        upsert(caches)
        .values(
            root_id=key.root_id,
            name=key.name,
            root_path=root_path,
            host=host,
            namespace=namespace,
            identity=dict(identity),
            model_path=model_path,
            state=CacheState.EMPTY.value,
        )
        .on_conflict_do_nothing()
    )
    used = tx.execute(
        update(caches)
        .where(_is(key), ~and_(_HELD, caches.c.writer_deed == CacheDeed.REMOVE.value))
        .values(
            root_path=root_path,
            host=host,
            used_by=device_id,
            model_path=model_path,
            last_used_at=func.now(),
            doomed_at=None,
        )
    )
    if used.rowcount:
        _note_use(tx, device_id, key.root_id, key.name, identity)
    return bool(used.rowcount)


def note_identity(
    tx: Connection, device_id: DeviceId, root_id: str, identity: Mapping[str, Any]
) -> None:
    """What the device's engine is compiled for now, though it uses no entry."""
    _note_use(tx, device_id, root_id, None, identity)


def leave(tx: Connection, device_id: DeviceId) -> None:
    """The device uses no entry any more."""
    tx.execute(update(uses).where(uses.c.device_id == device_id).values(name=None))


def lease(
    tx: Connection, key: CacheKey, holder: str, deed: CacheDeed, lease_s: float
) -> LeaseToken | None:
    """The right to write the entry, for so long; None while another has it, or where there is no
    such entry. To remove, also None while a live device uses it.
    """
    token = new_lease_token()
    free = [_is(key), ~_HELD]
    # Locked first: a use that is being noted right now is seen.
    tx.execute(select(caches.c.name).where(_is(key)).with_for_update())
    if deed is CacheDeed.REMOVE:
        free.append(~_live_uses(lease_s).where(_same_entry()).exists())
    won = tx.execute(
        update(caches)
        .where(*free)
        .values(
            writer=holder,
            writer_token=token,
            writer_deed=deed.value,
            writer_until=_from_now(lease_s),
        )
    )
    return token if won.rowcount else None


def writer_of(tx: Connection, key: CacheKey) -> str | None:
    """Who holds the entry's lease."""
    return tx.execute(select(caches.c.writer).where(_is(key), _HELD)).scalar_one_or_none()


def renew(tx: Connection, token: LeaseToken, lease_s: float) -> None:
    """Raises LostLease where another one may have the entry now."""
    renewed = tx.execute(
        update(caches)
        .where(caches.c.writer_token == token, caches.c.writer_until > func.now())
        .values(writer_until=_from_now(lease_s))
    )
    if renewed.rowcount == 0:
        raise LostLease("the compile cache has another writer now")


def hold(tx: Connection, token: LeaseToken) -> None:
    """Until this transaction ends nobody else takes the entry. Raises LostLease."""
    held = tx.execute(
        select(caches.c.name)
        .where(caches.c.writer_token == token, caches.c.writer_until > func.now())
        .with_for_update()
    ).first()
    if held is None:
        raise LostLease("the compile cache has another writer now")


def release(tx: Connection, token: LeaseToken) -> None:
    """Give the right to write back; fine where it was lost."""
    tx.execute(update(caches).where(caches.c.writer_token == token).values(**_FREE))


def describe(
    tx: Connection,
    token: LeaseToken,
    *,
    state: CacheState,
    reason: str | None,
    size: int,
    n_files: int,
) -> None:
    """What the entry holds now; the right to write is given back. Raises LostLease."""
    written = tx.execute(
        update(caches)
        .where(caches.c.writer_token == token, caches.c.writer_until > func.now())
        .values(state=state.value, reason=reason, bytes=size, n_files=n_files, **_FREE)
    )
    if written.rowcount == 0:
        raise LostLease("the compile cache has another writer now")


def set_aside(
    tx: Connection, token: LeaseToken, name: str, *, reason: str, size: int, n_files: int
) -> None:
    """What the entry held is kept as `name`, quarantined; the entry is empty. The lease stays."""
    copied = (
        "root_id",
        "root_path",
        "host",
        "namespace",
        "identity",
        "model_path",
        "created_at",
        "last_used_at",
        "used_by",
    )
    row = tx.execute(
        select(*(caches.c[column] for column in copied)).where(caches.c.writer_token == token)
    ).one()
    told = {
        "state": CacheState.QUARANTINED.value,
        "reason": reason,
        "bytes": size,
        "n_files": n_files,
    }
    tx.execute(
        upsert(caches)
        .values(**row._asdict(), name=name, **told)
        # The sweeper may have found the folder before this row.
        .on_conflict_do_update(index_elements=[caches.c.root_id, caches.c.name], set_=told)
    )
    tx.execute(
        update(caches)
        .where(caches.c.writer_token == token)
        .values(state=CacheState.EMPTY.value, reason=None, bytes=0, n_files=0)
    )


def adopt(
    tx: Connection,
    key: CacheKey,
    *,
    root_path: str,
    host: str,
    namespace: str,
    identity: Mapping[str, Any],
    model_path: str,
    state: CacheState,
    reason: str | None,
    size: int,
    n_files: int,
) -> None:
    """An entry that lies in the directory but is not known here: its database is gone, say."""
    tx.execute(
        upsert(caches)
        .values(
            root_id=key.root_id,
            name=key.name,
            root_path=root_path,
            host=host,
            namespace=namespace,
            identity=dict(identity),
            model_path=model_path,
            state=state.value,
            reason=reason,
            bytes=size,
            n_files=n_files,
        )
        .on_conflict_do_nothing()
    )


def drop(tx: Connection, token: LeaseToken) -> None:
    """The entry is gone from its directory."""
    tx.execute(caches.delete().where(caches.c.writer_token == token))


def doom(tx: Connection, keys: Iterable[CacheKey]) -> None:
    """To be removed by whoever reaches the directory, unless somebody uses it before."""
    for key in sorted(keys, key=lambda key: (key.root_id, key.name)):
        tx.execute(
            update(caches)
            .where(_is(key), caches.c.doomed_at.is_(None))
            .values(doomed_at=func.now())
        )


def doomed(tx: Connection, root_id: str) -> list[CacheKey]:
    found = tx.execute(
        select(caches.c.name)
        .where(caches.c.root_id == root_id, caches.c.doomed_at.is_not(None))
        .order_by(caches.c.name)
    )
    return [CacheKey(root_id, name) for name in found.scalars()]


def sizes(tx: Connection, root_id: str) -> dict[str, int]:
    """The entries known of a directory, with their bytes."""
    found = tx.execute(select(caches.c.name, caches.c.bytes).where(caches.c.root_id == root_id))
    return {row.name: row.bytes for row in found}


def total_bytes(tx: Connection) -> int:
    """Of all directories together."""
    return int(tx.execute(select(func.coalesce(func.sum(caches.c.bytes), 0))).scalar_one())


def every(tx: Connection, lease_s: float) -> list[CacheEntry]:
    """All entries that hold something or have been used, the last used first."""
    in_use: dict[CacheKey, list[str]] = {}
    for row in tx.execute(_live_uses(lease_s)):
        in_use.setdefault(CacheKey(row.root_id, row.name), []).append(row.device_id)
    rows = tx.execute(
        select(
            caches,
            _HELD.label("held"),
            func.extract("epoch", func.now() - caches.c.last_used_at).label("age_s"),
        ).order_by(caches.c.last_used_at.desc(), caches.c.root_id, caches.c.name)
    )
    return [
        CacheEntry(
            key=(key := CacheKey(row.root_id, row.name)),
            root_path=row.root_path,
            host=row.host,
            namespace=row.namespace,
            identity=row.identity,
            model_path=row.model_path,
            state=CacheState(row.state),
            reason=row.reason,
            bytes=row.bytes,
            n_files=row.n_files,
            created_at=row.created_at,
            last_used_at=row.last_used_at,
            age_s=float(row.age_s),
            used_by=row.used_by,
            writer=row.writer if row.held else None,
            in_use_by=tuple(sorted(in_use.get(key, ()))),
            doomed=row.doomed_at is not None,
        )
        for row in rows
    ]


def live_devices(tx: Connection, lease_s: float) -> list[str]:
    """Devices whose worker has been heard of within a lease."""
    return list(tx.execute(select(devices.c.id).where(*_lives(lease_s))).scalars())


def identities(tx: Connection) -> dict[str, Mapping[str, Any]]:
    """What each device's engine was last compiled for."""
    return {row.device_id: row.identity for row in tx.execute(select(uses))}


def _note_use(
    tx: Connection,
    device_id: DeviceId,
    root_id: str,
    name: str | None,
    identity: Mapping[str, Any],
) -> None:
    noted = {"root_id": root_id, "name": name, "identity": dict(identity)}
    tx.execute(
        upsert(uses)
        .values(device_id=device_id, **noted)
        .on_conflict_do_update(
            index_elements=[uses.c.device_id], set_=noted | {"since": func.now()}
        )
    )


def _is(key: CacheKey) -> ColumnElement[bool]:
    return and_(caches.c.root_id == key.root_id, caches.c.name == key.name)


def _same_entry() -> ColumnElement[bool]:
    return and_(uses.c.root_id == caches.c.root_id, uses.c.name == caches.c.name)


def _live_uses(lease_s: float) -> Any:
    """Uses by devices whose worker has been heard of within a lease."""
    return (
        select(uses.c.device_id, uses.c.root_id, uses.c.name)
        .join(devices, devices.c.id == uses.c.device_id)
        .where(uses.c.name.is_not(None), *_lives(lease_s))
    )


def _lives(lease_s: float) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return devices.c.state != "stopped", devices.c.heartbeat_at > func.now() - _interval(lease_s)


def _interval(seconds: float) -> Any:
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _from_now(seconds: float) -> Any:
    return func.now() + _interval(seconds)
