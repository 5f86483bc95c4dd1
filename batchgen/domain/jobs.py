"""Jobs, shards, segments, files, models, devices and sessions as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from batchgen.domain.ids import (
    DeviceId,
    FileId,
    JobId,
    KeyId,
    LeaseToken,
    ModelId,
    Project,
    SegmentId,
    SessionId,
    ShardId,
)
from batchgen.domain.states import JobState

# A shard whose holders were lost so often in a row, nothing written down since, is served alone;
# and so often, not at all any more.
SUSPECT_AFTER, GIVE_UP_AFTER = 2, 5


class Scope(StrEnum):
    """What a key may do; an admin may do all that a user may."""

    USER = "user"
    ADMIN = "admin"


class Section(StrEnum):
    """The parts of a segment object, in the order in which they lie in it."""

    OUTPUT = "output"
    TIMINGS = "timings"
    ERROR = "error"


class Ordering(StrEnum):
    """In which order a job's lines run; its results are in the order of the input either way."""

    PREFIX = "prefix"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret."""

    id: KeyId
    project: Project
    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class File:
    """An uploaded object, or a section of a job's final segments seen as one file."""

    id: FileId
    project: Project
    purpose: str
    filename: str
    bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None
    object_key: str | None
    job_id: JobId | None
    section: Section | None


@dataclass(frozen=True, slots=True)
class Model:
    """One immutable revision of a registered model.

    The content hashes are those of the model's and its draft's files, None until they are known.
    `seal` tells without reading them whether the files are still the same: their sizes and times on
    the server, None where nothing lies there.
    """

    id: ModelId
    name: str
    revision: int
    spec: Mapping[str, Any]
    fingerprint: str
    content_hash: str | None
    pool: str
    device: str | None
    created_at: datetime
    retired_at: datetime | None = None
    draft_content_hash: str | None = None
    seal: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How a job's request lines stand; each line is in exactly one of completed, failed, or
    open.
    """

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token sums over the completed lines; those of reasoning are output tokens as well."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an input file, and where. `line` counts physical lines from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted unit of work."""

    id: JobId
    project: Project
    kind: str
    state: JobState
    endpoint: str
    model: str | None
    model_id: ModelId | None
    overrides: Mapping[str, Any]
    engine_spec: Mapping[str, Any] | None
    engine_fingerprint: str | None
    pool: str | None
    device: str | None
    input_file_id: FileId
    output_file_id: FileId | None
    error_file_id: FileId | None
    metadata: Mapping[str, str] | None
    completion_window: str
    priority: int
    created_at: datetime
    in_progress_at: datetime | None
    expires_at: datetime
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None
    paused_at: datetime | None
    output_expires_after_s: int | None
    faults: tuple[Fault, ...] = ()
    counts: Counts = field(default_factory=Counts)
    usage: Usage = field(default_factory=Usage)
    metrics: Mapping[str, Any] | None = None
    ordering: Ordering = Ordering.PREFIX

    @property
    def all_failed(self) -> bool:
        """Terminal with lines, none of which completed."""
        return self.counts.total > 0 and self.counts.failed == self.counts.total


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A piece of the input, cut at ingest: bytes [byte_start, byte_end) of the input object.

    `first_line` counts physical lines from 1, `first_index` counts requests from 0.
    """

    seq: int
    byte_start: int
    byte_end: int
    first_line: int
    first_index: int
    n_requests: int
    est_tokens: int


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A pending shard whose lines are to end without running; `source` is the input's object."""

    id: ShardId
    job_id: JobId
    plan: ShardPlan
    source: str


@dataclass(frozen=True, slots=True)
class ClaimedShard:
    """A shard under lease, with what its holder needs to know of the job.

    `attempts` counts this claim and those before it whose holder died or went silent, with nothing
    written down since.
    """

    id: ShardId
    job_id: JobId
    project: Project
    plan: ShardPlan
    token: LeaseToken
    attempts: int
    endpoint: str
    model: str
    input_key: str
    engine_spec: Mapping[str, Any]
    engine_fingerprint: str
    priority: int = 0
    ordering: Ordering = Ordering.PREFIX

    @property
    def suspect(self) -> bool:
        """It may be what its holders died of: nothing else should be at stake with it."""
        return self.attempts > SUSPECT_AFTER


@dataclass(frozen=True, slots=True)
class SegmentDraft:
    """What a holder writes at a checkpoint: where the object lies and what is in it.

    `output_indexes` and `error_indexes` are request indexes, in the order of the lines in the
    object. `session_ids` are those of the sessions in which any of its lines ran: an engine may be
    replaced within a segment, and a final one gathers what several workers did.
    """

    object_key: str
    output_indexes: tuple[int, ...]
    error_indexes: tuple[int, ...]
    output_bytes: int
    timings_bytes: int
    error_bytes: int
    sha256: str
    usage: Usage
    session_ids: tuple[SessionId, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """An immutable piece of a shard's results. `final` ones hold the whole shard in input order."""

    id: SegmentId
    job_id: JobId
    shard_id: ShardId
    shard_seq: int
    final: bool
    draft: SegmentDraft

    def span(self, section: Section) -> tuple[int, int]:
        """The section's byte range [start, end) in the object."""
        d = self.draft
        return section_span(section, d.output_bytes, d.timings_bytes, d.error_bytes)


@dataclass(frozen=True, slots=True)
class FinalSegment:
    """All of a shard's results, without the indexes of its lines: they are in input order."""

    object_key: str
    output_bytes: int
    timings_bytes: int
    error_bytes: int
    sha256: str
    n_completed: int
    n_failed: int
    usage: Usage
    session_ids: tuple[SessionId, ...]

    def span(self, section: Section) -> tuple[int, int]:
        """The section's byte range [start, end) in the object."""
        return section_span(section, self.output_bytes, self.timings_bytes, self.error_bytes)


def section_span(
    section: Section, output_bytes: int, timings_bytes: int, error_bytes: int
) -> tuple[int, int]:
    """A section's byte range [start, end) in a segment object whose sections have these sizes."""
    match section:
        case Section.OUTPUT:
            return 0, output_bytes
        case Section.TIMINGS:
            return output_bytes, output_bytes + timings_bytes
        case Section.ERROR:
            start = output_bytes + timings_bytes
            return start, start + error_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a worker serves, or served."""

    id: DeviceId
    host: str
    device: str
    pool: str
    state: str
    detail: str | None
    session_id: SessionId | None
    started_at: datetime
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class EngineSession:
    """One engine loaded on one device.

    `monotonic_ns` is what the clock of the timings said at `started_at`, and `boot_id` names that
    clock; both None where they were not noted.
    """

    id: SessionId
    device_id: DeviceId
    fingerprint: str
    spec: Mapping[str, Any]
    applied: Mapping[str, Any]
    started_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    boot_id: str | None = None
    monotonic_ns: int | None = None
