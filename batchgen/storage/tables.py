"""The declared schema. The database repeats the domain's invariants as constraints."""

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

from batchgen.domain.checks import ENDED_CHECK_STATES, CheckState
from batchgen.domain.states import TERMINAL_JOB_STATES, JobState, ShardState

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_NOW = text("now()")


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    listed = ", ".join(f"'{v.value}'" for v in sorted(values, key=lambda v: v.value))
    return f"{column} IN ({listed})"


def _when(name: str, *, null: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=null)


def _created() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW)


keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("secret_hash", Text, nullable=False),
    _created(),
    _when("expires_at"),
    _when("revoked_at"),
    _when("last_used_at"),
    CheckConstraint("scope IN ('admin', 'user')", "scope"),
)

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    _created(),
    _when("expires_at"),
    _when("deleted_at"),
    Column("object_key", Text),
    Column("job_id", Text, ForeignKey("jobs.id", use_alter=True)),
    Column("section", Text),
    CheckConstraint("section IN ('output', 'error')", "section"),
    CheckConstraint("bytes >= 0", "bytes"),
    CheckConstraint("(object_key IS NULL) = (job_id IS NOT NULL)", "uploaded_or_produced"),
    CheckConstraint("(job_id IS NULL) = (section IS NULL)", "produced_has_section"),
    Index("ix_files_listing", "project", "created_at", "id"),
)

models = Table(
    "models",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("content_hash", Text),
    Column("draft_content_hash", Text),
    Column("seal", JSONB),
    Column("pool", Text, nullable=False),
    Column("device", Text),
    _created(),
    _when("retired_at"),
    CheckConstraint("revision >= 1", "revision"),
    UniqueConstraint("name", "revision"),
)

_ENGINELESS = frozenset(
    {
        JobState.VALIDATING,
        JobState.FAILED,
        JobState.CANCELLING,
        JobState.CANCELLED,
        JobState.EXPIRING,
        JobState.EXPIRED,
    }
)
_COUNTED = TERMINAL_JOB_STATES - {JobState.FAILED}

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("model", Text),
    Column("model_id", Text, ForeignKey("models.id")),
    Column("overrides", JSONB, nullable=False, server_default=text("'{}'")),
    Column("engine_spec", JSONB),
    Column("engine_fingerprint", Text),
    Column("pool", Text),
    Column("device", Text),
    Column("input_file_id", Text, ForeignKey("files.id"), nullable=False),
    Column("input_key", Text, nullable=False),
    Column("output_file_id", Text, ForeignKey("files.id")),
    Column("error_file_id", Text, ForeignKey("files.id")),
    Column("metadata", JSONB),
    Column("completion_window", Text, nullable=False),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("ordering", Text, nullable=False, server_default=text("'prefix'")),
    _created(),
    _when("in_progress_at"),
    _when("expires_at", null=False),
    _when("finalizing_at"),
    _when("completed_at"),
    _when("failed_at"),
    _when("expired_at"),
    _when("cancelling_at"),
    _when("cancelled_at"),
    _when("paused_at"),
    Column("output_expires_after_s", Integer),
    Column("n_total", Integer, nullable=False, server_default=text("0")),
    Column("n_completed", Integer, nullable=False, server_default=text("0")),
    Column("n_failed", Integer, nullable=False, server_default=text("0")),
    Column("input_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cached_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("output_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("reasoning_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("faults", JSONB, nullable=False, server_default=text("'[]'")),
    Column("metrics", JSONB),
    Column("idempotency_key", Text),
    Column("request_hash", Text),
    Column("control_token", UUID(as_uuid=True)),
    _when("control_until"),
    Column("control_attempts", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("kind IN ('generation')", "kind"),
    CheckConstraint(_one_of("state", JobState), "state"),
    CheckConstraint("ordering IN ('input', 'prefix')", "ordering"),
    UniqueConstraint("project", "idempotency_key"),
    CheckConstraint(
        f"{_one_of('state', _ENGINELESS)} OR engine_fingerprint IS NOT NULL", "engine_pinned"
    ),
    CheckConstraint("(engine_spec IS NULL) = (engine_fingerprint IS NULL)", "engine_whole"),
    CheckConstraint(
        f"NOT ({_one_of('state', _COUNTED)}) OR n_completed + n_failed = n_total", "all_accounted"
    ),
    CheckConstraint("(state = 'completed') = (completed_at IS NOT NULL)", "completed_at"),
    CheckConstraint("(state = 'failed') = (failed_at IS NOT NULL)", "failed_at"),
    CheckConstraint("(state = 'cancelled') = (cancelled_at IS NOT NULL)", "cancelled_at"),
    CheckConstraint("(state = 'expired') = (expired_at IS NOT NULL)", "expired_at"),
    CheckConstraint("(state = 'paused') = (paused_at IS NOT NULL)", "paused_at"),
    CheckConstraint("(control_token IS NULL) = (control_until IS NULL)", "control_lease"),
    CheckConstraint("(idempotency_key IS NULL) OR (request_hash IS NOT NULL)", "idempotency"),
    Index("ix_jobs_listing", "project", "created_at", "id"),
    Index(
        "ix_jobs_live",
        "state",
        postgresql_where=text(f"NOT ({_one_of('state', TERMINAL_JOB_STATES)})"),
    ),
)

# Narrow and often rewritten: room for in-place updates, and an eager vacuum.
shards = Table(
    "shards",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("byte_start", BigInteger, nullable=False),
    Column("byte_end", BigInteger, nullable=False),
    Column("first_line", Integer, nullable=False),
    Column("first_index", Integer, nullable=False),
    Column("n_requests", Integer, nullable=False),
    Column("est_tokens", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("lease_token", UUID(as_uuid=True)),
    _when("lease_until"),
    Column("holder", Text),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("n_requests >= 1", "n_requests"),
    CheckConstraint(_one_of("state", ShardState), "state"),
    UniqueConstraint("job_id", "seq"),
    CheckConstraint("byte_start >= 0 AND byte_end > byte_start", "range"),
    CheckConstraint("(state = 'leased') = (lease_token IS NOT NULL)", "lease_token"),
    CheckConstraint("(state = 'leased') = (lease_until IS NOT NULL)", "lease_until"),
    CheckConstraint("(state = 'leased') = (holder IS NOT NULL)", "holder"),
    Index("ix_shards_pending", "job_id", "seq", postgresql_where=text("state = 'pending'")),
    Index("ix_shards_leased", "lease_until", postgresql_where=text("state = 'leased'")),
    postgresql_with={
        "fillfactor": "70",
        "autovacuum_vacuum_scale_factor": "0.02",
        "autovacuum_vacuum_threshold": "200",
    },
)

segments = Table(
    "segments",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("shard_id", BigInteger, ForeignKey("shards.id", ondelete="CASCADE"), nullable=False),
    Column("final", Boolean, nullable=False),
    Column("object_key", Text, nullable=False, unique=True),
    Column("output_indexes", ARRAY(Integer), nullable=False),
    Column("error_indexes", ARRAY(Integer), nullable=False),
    Column("output_bytes", BigInteger, nullable=False),
    Column("timings_bytes", BigInteger, nullable=False),
    Column("error_bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("n_completed", Integer, nullable=False),
    Column("n_failed", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False, server_default=text("0")),
    # The sessions in which its lines ran: an engine may be replaced within a segment.
    Column("session_ids", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    _created(),
    CheckConstraint("n_completed = cardinality(output_indexes)", "n_completed"),
    CheckConstraint("n_failed = cardinality(error_indexes)", "n_failed"),
    Index("ix_segments_job", "job_id"),
    Index("ix_segments_shard", "shard_id"),
    Index("uq_segments_final", "shard_id", unique=True, postgresql_where=text("final")),
)

suspects = Table(
    "suspects",
    metadata,
    Column("shard_id", BigInteger, ForeignKey("shards.id", ondelete="CASCADE"), primary_key=True),
    Column("request_index", Integer, primary_key=True),
    Column("strikes", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    CheckConstraint("strikes >= 0", "strikes"),
)

devices = Table(
    "devices",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("worker_token", UUID(as_uuid=True), nullable=False),
    Column("lock_path", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("detail", Text),
    Column("session_id", Text),
    # Of its memory, as the last engine that was loaded on it told.
    Column("memory_bytes", BigInteger),
    # Fingerprints of engines that this worker has tried to load and could not.
    Column("unfit", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    postgresql_with={"fillfactor": "70"},
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("device_id", Text, ForeignKey("devices.id"), nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("applied", JSONB, nullable=False),
    Column("load_s", Float, nullable=False),
    # The clock of the timings: which boot of which machine's, and what it said at `started_at`.
    Column("boot_id", Text),
    Column("monotonic_ns", BigInteger),
    Column("stats", JSONB),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    _when("ended_at"),
    Column("end_reason", Text),
    CheckConstraint("(ended_at IS NULL) = (end_reason IS NULL)", "ended"),
)

model_checks = Table(
    "model_checks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("model_id", Text, ForeignKey("models.id"), nullable=False),
    Column("engine_spec", JSONB, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("device", Text),
    Column("prompt", Text, nullable=False),
    Column("max_tokens", Integer, nullable=False),
    Column("wait_s", Float, nullable=False),
    Column("warnings", JSONB, nullable=False, server_default=text("'[]'")),
    Column("state", Text, nullable=False),
    Column("lease_token", UUID(as_uuid=True)),
    _when("lease_until"),
    Column("holder", Text),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("report", JSONB),
    Column("reason", Text),
    _created(),
    _when("expires_at", null=False),
    _when("ended_at"),
    CheckConstraint(_one_of("state", CheckState), "state"),
    CheckConstraint("(state = 'running') = (lease_token IS NOT NULL)", "lease_token"),
    CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", "lease_until"),
    CheckConstraint(
        f"({_one_of('state', ENDED_CHECK_STATES)}) = (ended_at IS NOT NULL)", "ended_at"
    ),
    CheckConstraint("(state = 'passed') = (report IS NOT NULL)", "report"),
    CheckConstraint("(state IN ('failed', 'expired')) = (reason IS NOT NULL)", "reason"),
    CheckConstraint("max_tokens >= 1", "max_tokens"),
    Index(
        "ix_model_checks_open",
        "pool",
        "created_at",
        postgresql_where=text("state IN ('waiting', 'running')"),
    ),
)

job_events = Table(
    "job_events",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("event", Text, nullable=False),
    Column("data", JSONB, nullable=False, server_default=text("'{}'")),
    Index("ix_job_events_job", "job_id", "id"),
)

# Entries of directories of compiled models; `root_id` is a directory's own name for itself, the
# same for all hosts that mount it.
compile_caches = Table(
    "compile_caches",
    metadata,
    Column("root_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("root_path", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("identity", JSONB, nullable=False),
    Column("model_path", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("n_files", Integer, nullable=False, server_default=text("0")),
    _created(),
    Column("last_used_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("used_by", Text),
    Column("writer", Text),
    Column("writer_token", UUID(as_uuid=True)),
    Column("writer_deed", Text),
    _when("writer_until"),
    _when("doomed_at"),
    CheckConstraint("state IN ('empty', 'usable', 'rejected', 'quarantined')", "state"),
    CheckConstraint("(state IN ('rejected', 'quarantined')) = (reason IS NOT NULL)", "reason"),
    CheckConstraint("bytes >= 0 AND n_files >= 0", "sizes"),
    CheckConstraint("(writer_token IS NULL) = (writer_until IS NULL)", "writer_until"),
    CheckConstraint("(writer_token IS NULL) = (writer IS NULL)", "writer"),
    CheckConstraint("(writer_token IS NULL) = (writer_deed IS NULL)", "writer_deed"),
    CheckConstraint("writer_deed IN ('compile', 'remove')", "deed"),
)

# What each device's engine was last compiled for, and the entry that it holds now (NULL: none).
compile_cache_uses = Table(
    "compile_cache_uses",
    metadata,
    Column("device_id", Text, ForeignKey("devices.id"), primary_key=True),
    Column("root_id", Text, nullable=False),
    Column("name", Text),
    Column("identity", JSONB, nullable=False),
    Column("since", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Index("ix_compile_cache_uses_entry", "root_id", "name"),
)
