"""A shard's records in memory, and the segment objects they are written to and read from.

A segment object is [output JSONL][timings JSONL][error JSONL]; each section's lines are in the
order of the indexes in the segment's row, and every output line has one timing line.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import JobId, LeaseToken, SessionId
from batchgen.domain.jobs import Section, Segment, SegmentDraft, Usage
from batchgen.storage.objects import ObjectStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """The terminal record of one request: a line of the output file (with its timing line) or an
    error line.
    """

    index: int
    line: bytes
    timing: bytes | None = None

    @property
    def section(self) -> Section:
        return Section.ERROR if self.timing is None else Section.OUTPUT


def add(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input_tokens + other.input_tokens,
        one.cached_tokens + other.cached_tokens,
        one.output_tokens + other.output_tokens,
        one.reasoning_tokens + other.reasoning_tokens,
    )


def job_prefix(job_id: JobId) -> str:
    """Where a job's objects lie in the store."""
    return f"jobs/{job_id}/"


def object_key(job_id: JobId, shard_seq: int, token: LeaseToken, number: int) -> str:
    """A key that no other holder can use: it carries the lease token."""
    return f"{job_prefix(job_id)}{shard_seq:08d}-{token.hex}-{number}"


def write(
    store: ObjectStore,
    key: str,
    records: Iterable[Record],
    usage: Usage,
    session_ids: Iterable[SessionId] = (),
) -> SegmentDraft:
    """Put the records, in the order of their indexes, under `key`; durable when it returns.

    `session_ids`: the sessions in which they ran.
    """
    ordered = sorted(records, key=lambda record: record.index)
    done = [record for record in ordered if record.timing is not None]
    failed = [record for record in ordered if record.timing is None]
    output = b"".join(record.line for record in done)
    timings = b"".join(record.timing for record in done if record.timing is not None)
    errors = b"".join(record.line for record in failed)
    stored = store.put(key, output + timings + errors)
    return SegmentDraft(
        object_key=key,
        output_indexes=tuple(record.index for record in done),
        error_indexes=tuple(record.index for record in failed),
        output_bytes=len(output),
        timings_bytes=len(timings),
        error_bytes=len(errors),
        sha256=stored.sha256,
        usage=usage,
        session_ids=tuple(sorted(set(session_ids))),
    )


def read(store: ObjectStore, segments: Iterable[Segment]) -> tuple[dict[int, Record], Usage]:
    """The records of these segments by index, and the sum of their usage.

    A segment whose object is lost or damaged has none: its lines are open again.
    """
    records: dict[int, Record] = {}
    usage = Usage()
    for segment in segments:
        draft = segment.draft
        end = segment.span(Section.ERROR)[1]
        try:
            body = store.get_range(draft.object_key, 0, end) if end else b""
        except NotFound as error:
            log.error("segment_lost", job=segment.job_id, reason=str(error))  # noqa: TRY400 - an event, not a bug
            continue
        lines = {s: _lines(body[slice(*segment.span(s))]) for s in Section}
        outputs, timings = lines[Section.OUTPUT], lines[Section.TIMINGS]
        errors = lines[Section.ERROR]
        n_done, n_failed = len(draft.output_indexes), len(draft.error_indexes)
        if (len(outputs), len(timings), len(errors)) != (n_done, n_done, n_failed):
            log.error("segment_lost", job=segment.job_id, reason="it has other lines than its row")
            continue
        usage = add(usage, draft.usage)
        for index, line, timing in zip(draft.output_indexes, outputs, timings, strict=True):
            records[index] = Record(index, line, timing)
        for index, line in zip(draft.error_indexes, errors, strict=True):
            records[index] = Record(index, line)
    return records, usage


def sessions(segments: Iterable[Segment]) -> set[SessionId]:
    """The sessions in which these segments' lines ran."""
    return {session_id for segment in segments for session_id in segment.draft.session_ids}


def digest(parts: Mapping[str, str]) -> str:
    """A strong validator of a file made of segments: a hash over their hashes, in order."""
    whole = hashlib.sha256()
    for key, sha256 in parts.items():
        whole.update(f"{key}:{sha256}\n".encode())
    return whole.hexdigest()


def _lines(section: bytes) -> list[bytes]:
    return [line + b"\n" for line in section.split(b"\n")[:-1]]
