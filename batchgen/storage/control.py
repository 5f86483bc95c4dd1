"""The control worker's leases on jobs, and which jobs wait for it."""

import uuid
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select, update

from batchgen.domain.errors import LostLease
from batchgen.domain.ids import JobId, LeaseToken
from batchgen.domain.states import (
    PUBLISHABLE_JOB_STATES,
    JobEvent,
    JobState,
    ShardState,
    job_states_taking,
)
from batchgen.storage.instants import from_now
from batchgen.storage.tables import jobs, shards


@dataclass(frozen=True, slots=True)
class ControlLease:
    """The right to a job's next step. `attempts` counts this one and those before it that failed,
    or whose worker died, with no other between.
    """

    job_id: JobId
    token: LeaseToken
    attempts: int


def claim(tx: Connection, job_id: JobId, lease_s: float) -> ControlLease | None:
    """The right to ingest or finalize the job, for `lease_s`; None where another holds it or none
    is due.
    """
    due = [JobState.VALIDATING, *PUBLISHABLE_JOB_STATES, *job_states_taking(JobEvent.WORKED_OFF)]
    token = LeaseToken(uuid.uuid4())
    won = tx.execute(
        update(jobs)
        .where(
            jobs.c.id == job_id,
            jobs.c.state.in_([s.value for s in due]),
            or_(jobs.c.control_until.is_(None), jobs.c.control_until < func.now()),
        )
        .values(
            control_token=token,
            control_until=from_now(lease_s),
            control_attempts=jobs.c.control_attempts + 1,
        )
        .returning(jobs.c.control_attempts)
    ).first()
    return None if won is None else ControlLease(job_id, token, won.control_attempts)


def renew(tx: Connection, lease: ControlLease, lease_s: float) -> JobState:
    """Keep the control lease, under the row's lock; returns the job's state. Raises LostLease."""
    row = tx.execute(
        update(jobs)
        .where(_held(lease))
        .values(control_until=from_now(lease_s))
        .returning(jobs.c.state)
    ).first()
    if row is None:
        raise LostLease(f"the control lease of {lease.job_id} is another's")
    return JobState(row.state)


def release(tx: Connection, lease: ControlLease) -> None:
    """The step is over, and went well as far as the job is concerned."""
    tx.execute(
        update(jobs)
        .where(_held(lease))
        .values(control_token=None, control_until=None, control_attempts=0)
    )


def put_off(tx: Connection, lease: ControlLease, rest_s: float) -> None:
    """The step failed: nobody tries it again before `rest_s` have passed."""
    tx.execute(update(jobs).where(_held(lease)).values(control_until=from_now(rest_s)))


def _held(lease: ControlLease) -> ColumnElement[bool]:
    return and_(jobs.c.id == lease.job_id, jobs.c.control_token == lease.token)


def needing_ingest(tx: Connection) -> list[JobId]:
    """Jobs that wait to be validated and that nobody works on."""
    rows = tx.execute(
        select(jobs.c.id)
        .where(
            jobs.c.state == JobState.VALIDATING,
            or_(jobs.c.control_until.is_(None), jobs.c.control_until < func.now()),
        )
        .order_by(jobs.c.created_at)
    )
    return [JobId(row.id) for row in rows]


def needing_publication(tx: Connection) -> list[JobId]:
    """Jobs that nobody is working on any more and that can be brought to their end."""
    # Both have an index of their own; those that are done are the many.
    pending = exists().where(shards.c.job_id == jobs.c.id, shards.c.state == ShardState.PENDING)
    leased = exists().where(shards.c.job_id == jobs.c.id, shards.c.state == ShardState.LEASED)
    worked_off = jobs.c.state.in_([s.value for s in job_states_taking(JobEvent.WORKED_OFF)])
    ending = jobs.c.state.in_([s.value for s in PUBLISHABLE_JOB_STATES])
    rows = tx.execute(
        select(jobs.c.id)
        .where(
            or_(and_(worked_off, ~pending, ~leased), and_(ending, ~leased)),
            or_(jobs.c.control_until.is_(None), jobs.c.control_until < func.now()),
        )
        .order_by(jobs.c.created_at)
    )
    return [JobId(row.id) for row in rows]


def overdue(tx: Connection) -> list[JobId]:
    """Jobs whose window has passed and that can still expire."""
    return [JobId(row.id) for row in tx.execute(select(jobs.c.id).where(_is_overdue()))]


def lock_overdue(tx: Connection, job_id: JobId) -> bool:
    """Lock the job for this transaction; False where it is not, or no longer, overdue."""
    query = select(jobs.c.id).where(jobs.c.id == job_id, _is_overdue()).with_for_update()
    return tx.execute(query).first() is not None


def _is_overdue() -> ColumnElement[bool]:
    expirable = [s.value for s in job_states_taking(JobEvent.EXPIRE)]
    return and_(jobs.c.state.in_(expirable), jobs.c.expires_at < func.now())
