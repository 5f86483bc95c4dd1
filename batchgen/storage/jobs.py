"""Queries over jobs. A job's state changes in `advance` and nowhere else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Row, and_, func, or_, select, text, update

from batchgen.domain.errors import Conflict, NotFound
from batchgen.domain.ids import FileId, JobId, ModelId, Project
from batchgen.domain.jobs import Counts, Fault, Job, Ordering, Usage
from batchgen.domain.states import (
    TERMINAL_JOB_STATES,
    JobEvent,
    JobState,
    advance_job,
)
from batchgen.domain.window import window_seconds
from batchgen.storage.instants import from_now
from batchgen.storage.job_events import record
from batchgen.storage.tables import jobs, segments

# When a job enters a state, this column says since when; leaving it by a retry clears it.
_STAMPS = {
    JobState.FINALIZING: "finalizing_at",
    JobState.COMPLETED: "completed_at",
    JobState.FAILED: "failed_at",
    JobState.CANCELLING: "cancelling_at",
    JobState.CANCELLED: "cancelled_at",
    JobState.EXPIRED: "expired_at",
    JobState.PAUSED: "paused_at",
}
_TERMINAL = [s.value for s in TERMINAL_JOB_STATES]


def insert(
    tx: Connection,
    *,
    job_id: JobId,
    project: Project,
    endpoint: str,
    model: str | None,
    overrides: Mapping[str, Any],
    input_file_id: FileId,
    input_key: str,
    metadata: Mapping[str, str] | None,
    completion_window: str,
    window_s: int,
    priority: int,
    ordering: Ordering,
    output_expires_after_s: int | None,
    idempotency_key: str | None,
    request_hash: str,
) -> None:
    """A new job, validating. Its expiry counts from the database's now."""
    tx.execute(
        jobs.insert().values(
            id=job_id,
            project=project,
            kind="generation",
            state=JobState.VALIDATING,
            endpoint=endpoint,
            model=model,
            overrides=dict(overrides),
            input_file_id=input_file_id,
            input_key=input_key,
            metadata=None if metadata is None else dict(metadata),
            completion_window=completion_window,
            expires_at=func.now() + text(f"interval '{int(window_s)} seconds'"),
            priority=priority,
            ordering=ordering,
            output_expires_after_s=output_expires_after_s,
            idempotency_key=idempotency_key,
            request_hash=request_hash,
        )
    )
    record(tx, job_id, "created", {})


def by_idempotency_key(tx: Connection, project: Project, key: str) -> tuple[JobId, str] | None:
    """The job made earlier with this key, and the hash of the request that made it."""
    row = tx.execute(
        select(jobs.c.id, jobs.c.request_hash).where(
            jobs.c.project == project, jobs.c.idempotency_key == key
        )
    ).first()
    return None if row is None else (JobId(row.id), row.request_hash)


def get(tx: Connection, job_id: JobId, *, project: Project | None = None) -> Job:
    """The job, its counts derived from what has been written so far. Raises NotFound."""
    query = select(jobs).where(jobs.c.id == job_id)
    if project is not None:
        query = query.where(jobs.c.project == project)
    row = tx.execute(query).first()
    if row is None:
        raise NotFound(f"no job '{job_id}'", param="job_id")
    return _with_live_counts(tx, [_job(row)])[0]


def page(
    tx: Connection,
    project: Project,
    *,
    limit: int,
    after: JobId | None = None,
    states: Iterable[JobState] | None = None,
    model: str | None = None,
) -> list[Job]:
    """Newest first; `after` is the last id of the page before. Raises NotFound for a foreign
    `after`.
    """
    query = select(jobs).where(jobs.c.project == project)
    if states is not None:
        query = query.where(jobs.c.state.in_([s.value for s in states]))
    if model is not None:
        query = query.where(jobs.c.model == model)
    if after is not None:
        anchor = tx.execute(
            select(jobs.c.created_at).where(jobs.c.id == after, jobs.c.project == project)
        ).first()
        if anchor is None:
            raise NotFound(f"no job '{after}'", param="after")
        query = query.where(
            or_(
                jobs.c.created_at < anchor.created_at,
                and_(jobs.c.created_at == anchor.created_at, jobs.c.id < after),
            )
        )
    rows = tx.execute(query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit))
    return _with_live_counts(tx, [_job(row) for row in rows])


def advance(
    tx: Connection, job_id: JobId, event: JobEvent, *, project: Project | None = None
) -> JobState:
    """Move the job by `event` under its row lock; stamps, records and announces it.

    Raises NotFound, or Conflict where the table of transitions has no such move.
    """
    query = select(jobs.c.state, jobs.c.completion_window).where(jobs.c.id == job_id)
    query = query.with_for_update()
    if project is not None:
        query = query.where(jobs.c.project == project)
    row = tx.execute(query).first()
    if row is None:
        raise NotFound(f"no job '{job_id}'", param="job_id")
    before = JobState(row.state)
    after = advance_job(before, event)
    values: dict[str, Any] = {"state": after}
    stamp = _STAMPS.get(after)
    if stamp is not None:
        values[stamp] = func.now()
    match event:
        case JobEvent.RETRY:
            values |= dict.fromkeys(_STAMPS.values())
            window_s = window_seconds(row.completion_window)
            values |= {
                "output_file_id": None,
                "error_file_id": None,
                "metrics": None,
                "control_attempts": 0,
                "expires_at": func.greatest(jobs.c.expires_at, from_now(window_s)),
            }
        case JobEvent.RESUME:
            values["expires_at"] = jobs.c.expires_at + (func.now() - jobs.c.paused_at)
        case _:
            pass
    if before is JobState.PAUSED:
        values["paused_at"] = None
    if event is JobEvent.SHARDED:
        values["in_progress_at"] = func.now()
    tx.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
    record(tx, job_id, event, {"from": before, "to": after})
    return after


def set_faults(tx: Connection, job_id: JobId, faults: Sequence[Fault]) -> None:
    tx.execute(
        update(jobs).where(jobs.c.id == job_id).values(faults=[asdict(fault) for fault in faults])
    )


def pin(
    tx: Connection,
    job_id: JobId,
    *,
    model: str,
    model_id: ModelId,
    spec: Mapping[str, Any],
    fingerprint: str,
    pool: str,
    device: str | None,
    n_total: int,
) -> None:
    """Fix what will run the job, and how many requests it has."""
    tx.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            model=model,
            model_id=model_id,
            engine_spec=dict(spec),
            engine_fingerprint=fingerprint,
            pool=pool,
            device=device,
            n_total=n_total,
        )
    )


def input_key(tx: Connection, job_id: JobId) -> str:
    """The object that holds the job's input."""
    key: str = tx.execute(select(jobs.c.input_key).where(jobs.c.id == job_id)).scalar_one()
    return key


def set_priority(tx: Connection, job_id: JobId, project: Project, priority: int) -> None:
    changed = tx.execute(
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.project == project, jobs.c.state.not_in(_TERMINAL))
        .values(priority=priority)
    )
    if changed.rowcount == 0:
        get(tx, job_id, project=project)
        raise Conflict("the job has ended: its priority decides nothing any more")
    record(tx, job_id, "priority", {"priority": priority})


def publish(
    tx: Connection,
    job_id: JobId,
    *,
    counts: Counts,
    usage: Usage,
    output_file_id: FileId | None,
    error_file_id: FileId | None,
    metrics: Mapping[str, Any],
) -> None:
    """What a job that ends leaves: counts, usage, files, metrics. `advance` follows in the same
    transaction.
    """
    tx.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            # `n_total` stays as ingest counted it: the schema refuses an end that lacks a line.
            n_completed=counts.completed,
            n_failed=counts.failed,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            output_file_id=output_file_id,
            error_file_id=error_file_id,
            metrics=dict(metrics),
        )
    )


def live_users_of(tx: Connection, file_id: FileId) -> list[JobId]:
    """Jobs that have not ended and read this file."""
    rows = tx.execute(
        select(jobs.c.id).where(jobs.c.input_file_id == file_id, jobs.c.state.not_in(_TERMINAL))
    )
    return [JobId(row.id) for row in rows]


def states(tx: Connection, job_ids: Iterable[JobId]) -> dict[JobId, JobState]:
    rows = tx.execute(select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(list(job_ids))))
    return {JobId(row.id): JobState(row.state) for row in rows}


def live_totals(tx: Connection, job_ids: Sequence[JobId]) -> dict[JobId, tuple[int, int, Usage]]:
    """(completed, failed, usage) so far, from the segments."""
    rows = tx.execute(
        select(
            segments.c.job_id,
            func.sum(segments.c.n_completed).label("completed"),
            func.sum(segments.c.n_failed).label("failed"),
            func.sum(segments.c.input_tokens).label("input_tokens"),
            func.sum(segments.c.cached_tokens).label("cached_tokens"),
            func.sum(segments.c.output_tokens).label("output_tokens"),
            func.sum(segments.c.reasoning_tokens).label("reasoning_tokens"),
        )
        .where(segments.c.job_id.in_(list(job_ids)))
        .group_by(segments.c.job_id)
    )
    return {
        JobId(row.job_id): (
            int(row.completed),
            int(row.failed),
            Usage(
                int(row.input_tokens),
                int(row.cached_tokens),
                int(row.output_tokens),
                int(row.reasoning_tokens),
            ),
        )
        for row in rows
    }


def _with_live_counts(tx: Connection, found: list[Job]) -> list[Job]:
    live = [job.id for job in found if job.state not in TERMINAL_JOB_STATES]
    totals = live_totals(tx, live) if live else {}
    out = []
    for job in found:
        if job.id in totals:
            completed, failed, usage = totals[job.id]
            counts = Counts(job.counts.total, completed, failed)
            out.append(replace(job, counts=counts, usage=usage))
        elif job.state not in TERMINAL_JOB_STATES:
            out.append(replace(job, counts=Counts(job.counts.total), usage=Usage()))
        else:
            out.append(job)
    return out


def _job(row: Row[Any]) -> Job:
    return Job(
        id=JobId(row.id),
        project=Project(row.project),
        kind=row.kind,
        state=JobState(row.state),
        endpoint=row.endpoint,
        model=row.model,
        model_id=row.model_id,
        overrides=row.overrides,
        engine_spec=row.engine_spec,
        engine_fingerprint=row.engine_fingerprint,
        pool=row.pool,
        device=row.device,
        input_file_id=row.input_file_id,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        metadata=row.metadata,
        completion_window=row.completion_window,
        priority=row.priority,
        created_at=row.created_at,
        in_progress_at=row.in_progress_at,
        expires_at=row.expires_at,
        finalizing_at=row.finalizing_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        expired_at=row.expired_at,
        cancelling_at=row.cancelling_at,
        cancelled_at=row.cancelled_at,
        paused_at=row.paused_at,
        output_expires_after_s=row.output_expires_after_s,
        faults=tuple(Fault(**fault) for fault in row.faults),
        counts=Counts(row.n_total, row.n_completed, row.n_failed),
        usage=Usage(row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens),
        metrics=row.metrics,
        ordering=Ordering(row.ordering),
    )
