"""A job's record: what happened to it, in order, announced to whoever listens."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from batchgen.domain.ids import JobId
from batchgen.storage.tables import job_events

CHANNEL = "batchgen_jobs"


def record(tx: Connection, job_id: JobId, event: str, data: Mapping[str, Any]) -> None:
    """Add to the job's record; listeners hear of it when the transaction commits."""
    tx.execute(job_events.insert().values(job_id=job_id, event=event, data=dict(data)))
    tx.execute(select(func.pg_notify(CHANNEL, job_id)))


def after_id(
    tx: Connection, job_id: JobId, after: int, *, limit: int = 200
) -> list[tuple[int, datetime, str, dict[str, Any]]]:
    """The job's record from id `after` on: (id, time, event, data)."""
    rows = tx.execute(
        select(job_events)
        .where(job_events.c.job_id == job_id, job_events.c.id > after)
        .order_by(job_events.c.id)
        .limit(limit)
    )
    return [(row.id, row.at, row.event, row.data) for row in rows]
