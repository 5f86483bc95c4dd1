"""Queries over one section of a job's segments: where its lines lie in the object store."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY, array
from sqlalchemy.types import Integer

from batchgen.domain.ids import JobId
from batchgen.domain.jobs import Section, section_span
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
