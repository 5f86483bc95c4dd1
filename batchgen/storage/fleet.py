"""Queries over everything at once: for the metrics, and for whom to ring."""

from sqlalchemy import Connection, exists, func, or_, select

from batchgen.domain.ids import DeviceId
from batchgen.domain.states import CLAIMABLE_JOB_STATES, TERMINAL_JOB_STATES, JobState, ShardState
from batchgen.storage.instants import from_now
from batchgen.storage.tables import devices, jobs, shards

_CLAIMABLE = [state.value for state in CLAIMABLE_JOB_STATES]
# A worker that has not been heard of for so long is not there.
_ALIVE_S = 60.0
_TERMINAL = [state.value for state in TERMINAL_JOB_STATES]


def jobs_by_state(tx: Connection) -> dict[JobState, int]:
    rows = tx.execute(select(jobs.c.state, func.count().label("n")).group_by(jobs.c.state))
    return {JobState(row.state): row.n for row in rows}


def shards_by_state(tx: Connection) -> dict[ShardState, int]:
    """Of the jobs that have not ended."""
    rows = tx.execute(
        select(shards.c.state, func.count().label("n"))
        .join(jobs, jobs.c.id == shards.c.job_id)
        .where(jobs.c.state.not_in(_TERMINAL))
        .group_by(shards.c.state)
    )
    return {ShardState(row.state): row.n for row in rows}


def heartbeat_ages(tx: Connection) -> dict[DeviceId, float]:
    """Seconds since each device's last heartbeat, by the database's clock."""
    age = func.extract("epoch", func.now() - devices.c.heartbeat_at)
    rows = tx.execute(select(devices.c.id, age.label("age_s")))
    return {DeviceId(row.id): float(row.age_s) for row in rows}


def alive(tx: Connection, *, lease_s: float) -> frozenset[tuple[str, str]]:
    """Pool and device of every worker that has not signed off and was heard of within `lease_s`."""
    rows = tx.execute(
        select(devices.c.pool, devices.c.device).where(
            devices.c.state != "stopped", devices.c.heartbeat_at > from_now(-lease_s)
        )
    )
    return frozenset((row.pool, row.device) for row in rows)


def places_with_work(tx: Connection) -> list[tuple[str, str | None]]:
    """Pools, and devices where jobs are bound to one, for which an idle worker could claim a shard.

    Workers that serve, or are not there, look for themselves: bells would only pile up.
    """
    idle = exists().where(
        devices.c.pool == jobs.c.pool,
        or_(jobs.c.device.is_(None), devices.c.device == jobs.c.device),
        devices.c.state == "idle",
        devices.c.heartbeat_at > from_now(-_ALIVE_S),
    )
    rows = tx.execute(
        select(jobs.c.pool, jobs.c.device)
        .distinct()
        .where(
            jobs.c.state.in_(_CLAIMABLE),
            exists().where(shards.c.job_id == jobs.c.id, shards.c.state == ShardState.PENDING),
            idle,
        )
    )
    return [(row.pool, row.device) for row in rows if row.pool is not None]
