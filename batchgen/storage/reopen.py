"""What a retry does to the shards and segments of a job that has ended."""

from sqlalchemy import Connection, delete, func, select, update

from batchgen.domain.ids import JobId
from batchgen.domain.states import ShardState
from batchgen.storage.shards import WORK_CHANNEL
from batchgen.storage.tables import segments, shards, suspects


def reopen_failed(tx: Connection, job_id: JobId) -> int:
    """Drop the error lines of done shards and make these shards pending again, for a retry.

    What completed stays, as a checkpoint. Returns the number of lines that will run again.
    """
    rows = tx.execute(
        update(segments)
        .where(segments.c.job_id == job_id, segments.c.final, segments.c.n_failed > 0)
        .values(final=False, error_indexes=[], error_bytes=0, n_failed=0)
        .returning(segments.c.shard_id)
    ).all()
    ids = [row.shard_id for row in rows]
    tx.execute(
        update(shards)
        .where(shards.c.id.in_(ids), shards.c.state == ShardState.DONE)
        .values(state=ShardState.PENDING, attempts=0)
    )
    # Whoever asks for another try means one for those that were suspected, too.
    tx.execute(delete(suspects).where(suspects.c.shard_id.in_(ids)))
    totals = tx.execute(
        select(func.coalesce(func.sum(shards.c.n_requests), 0)).where(shards.c.id.in_(ids))
    ).scalar_one()
    kept = tx.execute(
        select(func.coalesce(func.sum(segments.c.n_completed), 0)).where(
            segments.c.shard_id.in_(ids)
        )
    ).scalar_one()
    tx.execute(select(func.pg_notify(WORK_CHANNEL, job_id)))
    return int(totals) - int(kept)
