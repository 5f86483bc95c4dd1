"""Queries over devices and the engine sessions they serve."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, all_, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from batchgen.domain.errors import Conflict, LostLease
from batchgen.domain.ids import DeviceId, JobId, SessionId
from batchgen.domain.jobs import Device, EngineSession
from batchgen.storage.tables import devices, segments, sessions


def register(
    tx: Connection,
    *,
    device_id: DeviceId,
    host: str,
    device: str,
    pool: str,
    worker_token: UUID,
    lock_path: str,
    lease_s: float,
) -> None:
    """This worker serves the device from now on. Raises Conflict where another one still does.

    The caller holds the lock file: a predecessor with the same lock is dead, one with
    another lock (another machine or data directory) must have been silent for a lease.
    """
    statement = upsert(devices).values(
        id=device_id,
        host=host,
        device=device,
        pool=pool,
        worker_token=worker_token,
        lock_path=lock_path,
        state="idle",
    )
    won = tx.execute(
        statement.on_conflict_do_update(
            index_elements=[devices.c.id],
            set_={
                "host": host,
                "device": device,
                "pool": pool,
                "worker_token": worker_token,
                "lock_path": lock_path,
                "state": "idle",
                "detail": None,
                "session_id": None,
                "unfit": [],
                "started_at": func.now(),
                "heartbeat_at": func.now(),
            },
            where=or_(
                devices.c.lock_path == lock_path,
                devices.c.state == "stopped",
                devices.c.heartbeat_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, lease_s),
            ),
        ).returning(devices.c.id)
    ).first()
    if won is None:
        raise Conflict(
            f"device {device_id} already has a live worker elsewhere: stop that one, or wait "
            f"{lease_s:.0f} s after it has died"
        )


def beat(
    tx: Connection,
    device_id: DeviceId,
    worker_token: UUID,
    *,
    state: str,
    detail: str | None = None,
    session_id: SessionId | None = None,
) -> None:
    """Say what the worker is doing. Raises LostLease where another worker has the device now."""
    changed = tx.execute(
        update(devices)
        .where(devices.c.id == device_id, devices.c.worker_token == worker_token)
        .values(state=state, detail=detail, session_id=session_id, heartbeat_at=func.now())
    )
    if changed.rowcount == 0:
        raise LostLease(f"device {device_id} has another worker now")


def set_unfit(
    tx: Connection, device_id: DeviceId, worker_token: UUID, fingerprints: Iterable[str]
) -> None:
    """Which engines this worker cannot load."""
    tx.execute(
        update(devices)
        .where(devices.c.id == device_id, devices.c.worker_token == worker_token)
        .values(unfit=sorted(fingerprints))
    )


def others_may_load(
    tx: Connection, device_id: DeviceId, pool: str, fingerprint: str, *, lease_s: float
) -> bool:
    """Whether another live worker of the pool has not failed to load this engine."""
    silent_since = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, lease_s)
    return (
        tx.execute(
            select(devices.c.id)
            .where(
                devices.c.pool == pool,
                devices.c.id != device_id,
                devices.c.state != "stopped",
                devices.c.heartbeat_at > silent_since,
                literal(fingerprint) != all_(devices.c.unfit),
            )
            .limit(1)
        ).first()
        is not None
    )


def every(tx: Connection) -> list[Device]:
    return [_device(row) for row in tx.execute(select(devices).order_by(devices.c.id))]


def live(tx: Connection, *, lease_s: float) -> list[Device]:
    """Those whose worker has been heard of within a lease."""
    silent_since = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, lease_s)
    rows = tx.execute(
        select(devices)
        .where(devices.c.state != "stopped", devices.c.heartbeat_at > silent_since)
        .order_by(devices.c.id)
    )
    return [_device(row) for row in rows]


def open_session(
    tx: Connection,
    *,
    session_id: SessionId,
    device_id: DeviceId,
    fingerprint: str,
    spec: Mapping[str, Any],
    applied: Mapping[str, Any],
    load_s: float,
    boot_id: str | None,
    monotonic_ns: int,
) -> None:
    """`monotonic_ns` is the machine's monotonic clock now, `boot_id` names that clock."""
    tx.execute(
        sessions.insert().values(
            id=session_id,
            device_id=device_id,
            fingerprint=fingerprint,
            spec=dict(spec),
            applied=dict(applied),
            load_s=load_s,
            boot_id=boot_id,
            monotonic_ns=monotonic_ns,
        )
    )
    memory_bytes = applied.get("config", {}).get("device_memory_bytes")
    if memory_bytes is not None:
        # An engine over several devices tells of all of them together.
        tx.execute(
            update(devices)
            .where(devices.c.id == device_id, devices.c.device == applied["device"])
            .values(memory_bytes=memory_bytes)
        )


def largest_memory_bytes(tx: Connection, pool: str, device: str | None) -> int | None:
    """The memory of the largest device that serves the pool's jobs for `device` (None: for any).

    None where there is no such device, or one of them has not told yet.
    """
    fitting = [devices.c.pool == pool, devices.c.state != "stopped"]
    if device is not None:
        fitting.append(devices.c.device == device)
    sizes = tx.execute(select(devices.c.memory_bytes).where(*fitting)).scalars().all()
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == len(sizes) else None


def close_session(
    tx: Connection, session_id: SessionId, reason: str, stats: Mapping[str, Any] | None
) -> None:
    tx.execute(
        update(sessions)
        .where(sessions.c.id == session_id, sessions.c.ended_at.is_(None))
        .values(
            ended_at=func.now(), end_reason=reason, stats=None if stats is None else dict(stats)
        )
    )


def close_sessions_of(tx: Connection, device_id: DeviceId, reason: str) -> None:
    """Sessions that a dead worker left open."""
    tx.execute(
        update(sessions)
        .where(sessions.c.device_id == device_id, sessions.c.ended_at.is_(None))
        .values(ended_at=func.now(), end_reason=reason)
    )


def sessions_of_job(tx: Connection, job_id: JobId) -> list[EngineSession]:
    """The sessions that produced any of the job's segments, oldest first."""
    used = select(func.unnest(segments.c.session_ids)).where(segments.c.job_id == job_id).distinct()
    rows = tx.execute(
        select(sessions).where(sessions.c.id.in_(used)).order_by(sessions.c.started_at)
    )
    return [
        EngineSession(
            id=SessionId(row.id),
            device_id=DeviceId(row.device_id),
            fingerprint=row.fingerprint,
            spec=row.spec,
            applied=row.applied,
            started_at=row.started_at,
            ended_at=row.ended_at,
            end_reason=row.end_reason,
            boot_id=row.boot_id,
            monotonic_ns=row.monotonic_ns,
        )
        for row in rows
    ]


def _device(row: Row[Any]) -> Device:
    return Device(
        id=DeviceId(row.id),
        host=row.host,
        device=row.device,
        pool=row.pool,
        state=row.state,
        detail=row.detail,
        session_id=None if row.session_id is None else SessionId(row.session_id),
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
    )
