"""Requests that are suspected of killing engines; the suspicion outlives the worker that has it."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, and_, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from batchgen.domain.ids import ShardId
from batchgen.storage.tables import suspects


def strikes(tx: Connection, shard_ids: Sequence[ShardId]) -> dict[tuple[ShardId, int], int]:
    """How often each suspect request was running when an engine died."""
    rows = tx.execute(select(suspects).where(suspects.c.shard_id.in_(list(shard_ids))))
    return {(ShardId(r.shard_id), r.request_index): r.strikes for r in rows}


def struck_for(tx: Connection, shard_id: ShardId, reason: str) -> set[int]:
    """The requests of a shard whose last strike was for this reason."""
    rows = tx.execute(
        select(suspects.c.request_index).where(
            suspects.c.shard_id == shard_id, suspects.c.reason == reason
        )
    )
    return {row.request_index for row in rows}


def strike(tx: Connection, shard_id: ShardId, indexes: Iterable[int], reason: str) -> None:
    """Count one more strike against these requests, so that it outlives the worker."""
    rows = [
        {"shard_id": shard_id, "request_index": i, "strikes": 1, "reason": reason} for i in indexes
    ]
    if not rows:
        return
    statement = upsert(suspects).values(rows)
    tx.execute(
        statement.on_conflict_do_update(
            index_elements=[suspects.c.shard_id, suspects.c.request_index],
            set_={
                "strikes": suspects.c.strikes + 1,
                "reason": statement.excluded.reason,
                "updated_at": func.now(),
            },
        )
    )


def take_back(tx: Connection, shard_id: ShardId, index: int) -> None:
    """The last strike says nothing of this request; earlier ones stay."""
    this = and_(suspects.c.shard_id == shard_id, suspects.c.request_index == index)
    tx.execute(delete(suspects).where(this, suspects.c.strikes <= 1))
    tx.execute(update(suspects).where(this).values(strikes=suspects.c.strikes - 1))


def absolve(tx: Connection, shard_id: ShardId, indexes: Iterable[int]) -> None:
    """These requests have shown that they are innocent."""
    tx.execute(
        delete(suspects).where(
            suspects.c.shard_id == shard_id, suspects.c.request_index.in_(list(indexes))
        )
    )
