"""Queries over segments: whole ones, and where one section of them lies in the object store."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, cast, delete, func, select
from sqlalchemy.dialects.postgresql import ARRAY, array
from sqlalchemy.types import Integer

from batchgen.domain.ids import JobId, SegmentId, ShardId
from batchgen.domain.jobs import FinalSegment, Section, Segment, SegmentDraft, Usage, section_span
from batchgen.storage.tables import segments, shards


@dataclass(frozen=True, slots=True)
class Part:
    """A section of one segment: bytes [start, end) of an object.

    `indexes` are the request indexes of its lines; empty for final parts, which are in input order.
    """

    shard_seq: int
    final: bool
    object_key: str
    start: int
    end: int
    indexes: tuple[int, ...]


def of_shard(tx: Connection, shard_id: ShardId) -> list[Segment]:
    return _segments(tx, _segment_query().where(segments.c.shard_id == shard_id))


def final_of_job(tx: Connection, job_id: JobId) -> list[FinalSegment]:
    """In the order of the shards in the file; some hundred bytes a shard, whatever is in it."""
    columns = segments.c
    rows = tx.execute(
        select(
            columns.object_key,
            columns.output_bytes,
            columns.timings_bytes,
            columns.error_bytes,
            columns.sha256,
            columns.n_completed,
            columns.n_failed,
            columns.input_tokens,
            columns.cached_tokens,
            columns.output_tokens,
            columns.reasoning_tokens,
            columns.session_ids,
        )
        .join(shards, shards.c.id == columns.shard_id)
        .where(columns.job_id == job_id, columns.final)
        .order_by(shards.c.seq)
    )
    return [
        FinalSegment(
            object_key=row.object_key,
            output_bytes=row.output_bytes,
            timings_bytes=row.timings_bytes,
            error_bytes=row.error_bytes,
            sha256=row.sha256,
            n_completed=row.n_completed,
            n_failed=row.n_failed,
            usage=_usage(row),
            session_ids=tuple(row.session_ids),
        )
        for row in rows
    ]


def of_job(tx: Connection, job_id: JobId, *, final_only: bool = False) -> list[Segment]:
    """In the order of the shards in the file, with the indexes of all lines: for small jobs."""
    query = _segment_query().where(segments.c.job_id == job_id)
    if final_only:
        query = query.where(segments.c.final)
    return _segments(tx, query)


def referenced_keys(tx: Connection, job_id: JobId) -> set[str]:
    """The objects that the job's segments refer to."""
    rows = tx.execute(select(segments.c.object_key).where(segments.c.job_id == job_id))
    return {row.object_key for row in rows}


def final_parts(tx: Connection, job_id: JobId, section: Section) -> list[Part]:
    """The parts of the shards that are done, in the order of the input; none of them empty."""
    rows = tx.execute(
        _query(section).where(segments.c.job_id == job_id, segments.c.final).order_by(shards.c.seq)
    )
    return [part for part in (_part(row, section) for row in rows) if part.end > part.start]


def parts_of_shards(
    tx: Connection, job_id: JobId, section: Section, *, first: int, end: int
) -> list[Part]:
    """What there is of the shards [first, end) in order, checkpoints in the order of writing."""
    rows = tx.execute(
        _query(section)
        .where(segments.c.job_id == job_id, shards.c.seq >= first, shards.c.seq < end)
        .order_by(shards.c.seq, segments.c.id)
    )
    return [part for part in (_part(row, section) for row in rows) if part.end > part.start]


def n_shards(tx: Connection, job_id: JobId) -> int:
    n: int = tx.execute(select(func.count()).where(shards.c.job_id == job_id)).scalar_one()
    return n


def replace(tx: Connection, job_id: JobId, shard_id: ShardId, draft: SegmentDraft) -> list[str]:
    """The draft becomes the shard's final and only segment; returns the objects of those before.

    The caller holds the shard's lock.
    """
    gone = tx.execute(
        delete(segments).where(segments.c.shard_id == shard_id).returning(segments.c.object_key)
    ).all()
    insert(tx, job_id, shard_id, draft, final=True)
    return [row.object_key for row in gone if row.object_key != draft.object_key]


def insert(
    tx: Connection, job_id: JobId, shard_id: ShardId, draft: SegmentDraft, *, final: bool
) -> None:
    """One more segment of a shard, whose lock the caller holds."""
    tx.execute(
        segments.insert().values(
            job_id=job_id,
            shard_id=shard_id,
            final=final,
            object_key=draft.object_key,
            output_indexes=list(draft.output_indexes),
            error_indexes=list(draft.error_indexes),
            output_bytes=draft.output_bytes,
            timings_bytes=draft.timings_bytes,
            error_bytes=draft.error_bytes,
            sha256=draft.sha256,
            n_completed=len(draft.output_indexes),
            n_failed=len(draft.error_indexes),
            input_tokens=draft.usage.input_tokens,
            cached_tokens=draft.usage.cached_tokens,
            output_tokens=draft.usage.output_tokens,
            reasoning_tokens=draft.usage.reasoning_tokens,
            session_ids=list(draft.session_ids),
        )
    )


def _usage(row: Any) -> Usage:
    return Usage(row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens)


def _query(section: Section) -> Any:
    # Final parts are in order as they stand: their many indexes need not travel.
    none = cast(array([]), ARRAY(Integer))
    indexes: ColumnElement[Any] = (
        segments.c.error_indexes if section is Section.ERROR else segments.c.output_indexes
    )
    return select(
        shards.c.seq,
        segments.c.final,
        segments.c.object_key,
        segments.c.output_bytes,
        segments.c.timings_bytes,
        segments.c.error_bytes,
        case((segments.c.final, none), else_=indexes).label("indexes"),
    ).join(shards, shards.c.id == segments.c.shard_id)


def _part(row: Row[Any], section: Section) -> Part:
    start, end = section_span(section, row.output_bytes, row.timings_bytes, row.error_bytes)
    return Part(row.seq, row.final, row.object_key, start, end, tuple(row.indexes))


def _segment_query() -> Select[Any]:
    return (
        select(segments, shards.c.seq.label("shard_seq"))
        .join(shards, shards.c.id == segments.c.shard_id)
        .order_by(shards.c.seq, segments.c.id)
    )


def _segments(tx: Connection, query: Select[Any]) -> list[Segment]:
    return [
        Segment(
            id=SegmentId(row.id),
            job_id=JobId(row.job_id),
            shard_id=ShardId(row.shard_id),
            shard_seq=row.shard_seq,
            final=row.final,
            draft=SegmentDraft(
                object_key=row.object_key,
                output_indexes=tuple(row.output_indexes),
                error_indexes=tuple(row.error_indexes),
                output_bytes=row.output_bytes,
                timings_bytes=row.timings_bytes,
                error_bytes=row.error_bytes,
                sha256=row.sha256,
                usage=_usage(row),
                session_ids=tuple(row.session_ids),
            ),
        )
        for row in tx.execute(query)
    ]
