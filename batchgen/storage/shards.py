"""Claim, renew, checkpoint, finish, release: every write of a holder is fenced by its lease
token.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, delete, exists, func, or_, select, update

from batchgen.domain.errors import Conflict, LostLease
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import JobId, LeaseToken, ShardId
from batchgen.domain.jobs import (
    GIVE_UP_AFTER,
    SUSPECT_AFTER,
    ClaimedShard,
    OpenShard,
    Ordering,
    SegmentDraft,
    ShardPlan,
)
from batchgen.domain.states import CLAIMABLE_JOB_STATES, JobEvent, JobState, ShardState
from batchgen.storage import jobs as job_queries
from batchgen.storage import segments as segment_queries
from batchgen.storage.instants import from_now
from batchgen.storage.tables import devices, jobs, segments, shards, suspects

_CLAIMABLE = [s.value for s in CLAIMABLE_JOB_STATES]
WORK_CHANNEL = "batchgen_work"
# A worker that has not been heard of for so long is not there.
_ALIVE_S = 60.0


def insert(tx: Connection, job_id: JobId, plans: Sequence[ShardPlan]) -> None:
    """A job's shards, all pending, and a hint to the workers that there may be work."""
    columns = (
        "job_id, seq, byte_start, byte_end, first_line, first_index, n_requests, est_tokens, state"
    )
    cursor = tx.connection.cursor()
    with cursor.copy(f"COPY shards ({columns}) FROM STDIN") as copy:
        for p in plans:
            copy.write_row(
                (
                    job_id,
                    p.seq,
                    p.byte_start,
                    p.byte_end,
                    p.first_line,
                    p.first_index,
                    p.n_requests,
                    p.est_tokens,
                    ShardState.PENDING.value,
                )
            )
    tx.execute(select(func.pg_notify(WORK_CHANNEL, job_id)))


def claim(
    tx: Connection,
    *,
    pool: str,
    device: str,
    holder: str,
    lease_s: float,
    loaded: str | None = None,
    loyal: bool = False,
    unfit: Sequence[str] = (),
    ahead: int = 0,
    above: int | None = None,
    beside_others: bool = False,
) -> ClaimedShard | None:
    """Lease the next shard for a device: by priority, then age of the job, then place in the file.

    With an engine `loaded` (its fingerprint), only its work is claimed: None may then mean that
    other work comes first. While `loyal`, work of another engine comes first only by priority.
    Work of the engines in `unfit` is left to others, but for jobs that are bound to this device.
    A holder that has `ahead` shards which it does not run yet gets no more than leaves as many to
    each other device. With `above` only jobs of a higher priority are looked at.
    `beside_others`: the holder has other shards already, so no suspect one is claimed; unless
    `loyal`, it gets no work of later jobs then, so that it comes to an end with what it has.
    """
    most_attempts = SUSPECT_AFTER if beside_others else GIVE_UP_AFTER
    busy: list[str] = []
    while True:
        best = _best(tx, pool, device, None, busy=busy, unfit=unfit, above=above)
        if best is None:
            return None
        if loaded is not None and best.engine_fingerprint != loaded:
            first = best
            best = _best(tx, pool, device, loaded, busy=busy, unfit=unfit, above=above)
            if best is None or first.priority > best.priority or not loyal:
                return None
        if ahead and not _may_hold_more(tx, best, pool, holder, ahead):
            return None
        row = tx.execute(
            select(shards)
            .where(
                shards.c.job_id == best.id,
                shards.c.state == ShardState.PENDING,
                shards.c.attempts < most_attempts,
            )
            .order_by(shards.c.seq)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).first()
        if row is not None:
            break
        if beside_others and not loyal and _has_suspect(tx, best.id):
            return None
        # Others are claiming all that it has, or may have: the next job's turn.
        busy.append(best.id)
    token = LeaseToken(uuid.uuid4())
    tx.execute(
        update(shards)
        .where(shards.c.id == row.id)
        .values(
            state=ShardState.LEASED,
            lease_token=token,
            lease_until=from_now(lease_s),
            holder=holder,
            attempts=shards.c.attempts + 1,
        )
    )
    if best.state == JobState.QUEUED:
        _mark_running(tx, JobId(best.id))
    reach(Failpoint.CLAIM_UNCOMMITTED)
    return ClaimedShard(
        id=ShardId(row.id),
        job_id=JobId(row.job_id),
        project=best.project,
        plan=_plan(row),
        token=token,
        attempts=row.attempts + 1,
        endpoint=best.endpoint,
        model=best.model,
        input_key=best.input_key,
        engine_spec=best.engine_spec,
        engine_fingerprint=best.engine_fingerprint,
        priority=best.priority,
        ordering=Ordering(best.ordering),
    )


def renew(tx: Connection, tokens: Iterable[LeaseToken], lease_s: float) -> set[LeaseToken]:
    """Lengthen these leases; returns those that are still held."""
    rows = tx.execute(
        update(shards)
        # The state is what finds them in the index of leases.
        .where(shards.c.state == ShardState.LEASED, shards.c.lease_token.in_(list(tokens)))
        .values(lease_until=from_now(lease_s))
        .returning(shards.c.lease_token)
    )
    return {LeaseToken(row.lease_token) for row in rows}


def checkpoint(
    tx: Connection, shard: ClaimedShard, draft: SegmentDraft, *, instead_of: Sequence[str] = ()
) -> None:
    """Record finished lines of a shard under lease. Raises LostLease.

    `instead_of`: objects of earlier tries whose commit may have come through or not; the draft
    holds their lines.
    """
    _lock_held(tx, shard)
    if instead_of:
        tx.execute(
            delete(segments).where(
                segments.c.shard_id == shard.id, segments.c.object_key.in_(instead_of)
            )
        )
    segment_queries.insert(tx, shard.job_id, shard.id, draft, final=False)
    # The shard gets on: holders that were lost before say nothing against it.
    tx.execute(update(shards).where(shards.c.id == shard.id).values(attempts=0))


def finish(tx: Connection, shard: ClaimedShard, draft: SegmentDraft) -> list[str]:
    """The shard is done: its final segment replaces the checkpoints. Raises LostLease.

    Returns the keys of objects that nothing refers to any more. Raises Conflict where the final
    segment does not hold every line once.
    """
    _lock_held(tx, shard)
    indexes = (*draft.output_indexes, *draft.error_indexes)
    first = shard.plan.first_index
    if sorted(indexes) != list(range(first, first + shard.plan.n_requests)):
        raise Conflict(f"shard {shard.id} cannot be done: its lines are not all there, each once")
    replaced = segment_queries.replace(tx, shard.job_id, shard.id, draft)
    tx.execute(
        update(shards)
        .where(shards.c.id == shard.id)
        .values(state=ShardState.DONE, lease_token=None, lease_until=None, holder=None)
    )
    tx.execute(delete(suspects).where(suspects.c.shard_id == shard.id))
    return replaced


def cut(tx: Connection, job_id: JobId, shard_id: ShardId, draft: SegmentDraft) -> list[str]:
    """A pending shard of a job that ends early becomes done. Raises LostLease where it is not
    pending.
    """
    changed = tx.execute(
        update(shards)
        .where(shards.c.id == shard_id, shards.c.state == ShardState.PENDING)
        .values(state=ShardState.DONE)
    )
    if changed.rowcount == 0:
        raise LostLease(f"shard {shard_id} is no longer pending")
    return segment_queries.replace(tx, job_id, shard_id, draft)


def release(tx: Connection, tokens: Iterable[LeaseToken]) -> int:
    """Give these shards back unfinished; those already lost are left alone. Returns how many."""
    given = shards.c.lease_token.in_(list(tokens))
    # Whoever gives a shard back has not died of it.
    return _to_pending(tx, given, attempts=func.greatest(shards.c.attempts - 1, 0))


def release_all_of(tx: Connection, holder: str) -> int:
    """What a worker that died on this device had leased goes back. Only its successor may call
    this.
    """
    return _to_pending(tx, shards.c.holder == holder)


def reap(tx: Connection) -> int:
    """Leases that have ended go back to pending. Returns how many."""
    return _to_pending(tx, shards.c.lease_until < func.now())


def is_unfinished(tx: Connection, job_id: JobId) -> bool:
    """Whether any of the job's shards is not done."""
    # Two looks at the indexes of pending and leased shards; those that are done are the many.
    open_ = [
        exists().where(shards.c.job_id == job_id, shards.c.state == state)
        for state in (ShardState.PENDING, ShardState.LEASED)
    ]
    found: bool = tx.execute(select(or_(*open_))).scalar_one()
    return found


def pending_of(tx: Connection, job_id: JobId, *, limit: int) -> list[tuple[ShardId, ShardPlan]]:
    """The job's next pending shards in order."""
    rows = tx.execute(
        select(shards)
        .where(shards.c.job_id == job_id, shards.c.state == ShardState.PENDING)
        .order_by(shards.c.seq)
        .limit(limit)
    )
    return [(ShardId(row.id), _plan(row)) for row in rows]


def given_up(tx: Connection, *, limit: int) -> list[OpenShard]:
    """Pending shards that nobody claims any more, of jobs at work."""
    rows = tx.execute(
        select(shards, jobs.c.input_key)
        .join(jobs, jobs.c.id == shards.c.job_id)
        .where(
            shards.c.state == ShardState.PENDING,
            shards.c.attempts >= GIVE_UP_AFTER,
            jobs.c.state.in_(_CLAIMABLE),
        )
        .order_by(shards.c.id)
        .limit(limit)
    )
    return [
        OpenShard(ShardId(row.id), JobId(row.job_id), _plan(row), row.input_key) for row in rows
    ]


def leased_of(tx: Connection, job_id: JobId) -> int:
    n: int = tx.execute(
        select(func.count()).where(shards.c.job_id == job_id, shards.c.state == ShardState.LEASED)
    ).scalar_one()
    return n


def _best(
    tx: Connection,
    pool: str,
    device: str,
    loaded: str | None,
    *,
    busy: Sequence[str],
    unfit: Sequence[str],
    above: int | None,
) -> Any:
    free = exists().where(shards.c.job_id == jobs.c.id, shards.c.state == ShardState.PENDING)
    query = select(
        jobs.c.id,
        jobs.c.project,
        jobs.c.state,
        jobs.c.priority,
        jobs.c.ordering,
        jobs.c.device,
        jobs.c.endpoint,
        jobs.c.model,
        jobs.c.input_key,
        jobs.c.engine_spec,
        jobs.c.engine_fingerprint,
    ).where(
        jobs.c.state.in_(_CLAIMABLE),
        jobs.c.pool == pool,
        or_(jobs.c.device.is_(None), jobs.c.device == device),
        jobs.c.expires_at > func.now(),
        jobs.c.id.not_in(busy),
        # What is bound to this device nobody else can serve.
        or_(jobs.c.device.is_not(None), jobs.c.engine_fingerprint.not_in(unfit)),
        free,
    )
    if loaded is not None:
        query = query.where(jobs.c.engine_fingerprint == loaded)
    if above is not None:
        query = query.where(jobs.c.priority > above)
    order = (jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id)
    return tx.execute(query.order_by(*order).limit(1)).first()


def _has_suspect(tx: Connection, job_id: str) -> bool:
    """Whether a shard of the job waits for a worker that holds nothing else."""
    found: bool = tx.execute(
        select(
            exists().where(
                shards.c.job_id == job_id,
                shards.c.state == ShardState.PENDING,
                shards.c.attempts.between(SUSPECT_AFTER, GIVE_UP_AFTER - 1),
            )
        )
    ).scalar_one()
    return found


def _may_hold_more(tx: Connection, job: Any, pool: str, holder: str, ahead: int) -> bool:
    """Shares become smaller towards the job's end, so that all devices end together (guided
    self-scheduling: Polychronopoulos & Kuck 1987).
    """
    if job.device is not None:
        return True
    others: int = tx.execute(
        select(func.count()).where(
            devices.c.pool == pool,
            devices.c.id != holder,
            devices.c.state != "stopped",
            devices.c.heartbeat_at > from_now(-_ALIVE_S),
        )
    ).scalar_one()
    enough = (ahead + 1) * (others + 1)
    pending = (
        select(shards.c.id)
        .where(shards.c.job_id == job.id, shards.c.state == ShardState.PENDING)
        .limit(enough)
        .subquery()
    )
    n: int = tx.execute(select(func.count()).select_from(pending)).scalar_one()
    return not others or n >= enough


def _plan(row: Any) -> ShardPlan:
    return ShardPlan(
        row.seq,
        row.byte_start,
        row.byte_end,
        row.first_line,
        row.first_index,
        row.n_requests,
        row.est_tokens,
    )


def _mark_running(tx: Connection, job_id: JobId) -> None:
    try:
        job_queries.advance(tx, job_id, JobEvent.CLAIMED)
    except Conflict:
        # Another worker was first, or the job is being cancelled: the claim holds all the same,
        # and the holder learns of a cancel at its next look.
        return


def _lock_held(tx: Connection, shard: ClaimedShard) -> None:
    held = tx.execute(
        select(shards.c.id)
        .where(shards.c.id == shard.id, shards.c.lease_token == shard.token)
        .with_for_update()
    ).first()
    if held is None:
        raise LostLease(f"shard {shard.id} is held by another")


def _to_pending(tx: Connection, condition: Any, **more: Any) -> int:
    rows = tx.execute(
        update(shards)
        .where(shards.c.state == ShardState.LEASED, condition)
        .values(state=ShardState.PENDING, lease_token=None, lease_until=None, holder=None, **more)
        .returning(shards.c.job_id)
    ).all()
    for job_id in {row.job_id for row in rows}:
        tx.execute(select(func.pg_notify(WORK_CHANNEL, job_id)))
    return len(rows)
