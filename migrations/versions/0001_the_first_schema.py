"""the first schema"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("worker_token", sa.UUID(), nullable=False),
        sa.Column("lock_path", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column(
            "unfit",
            postgresql.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("object_key", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("section", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(job_id IS NULL) = (section IS NULL)", name=op.f("ck_files_produced_has_section")
        ),
        sa.CheckConstraint(
            "(object_key IS NULL) = (job_id IS NOT NULL)",
            name=op.f("ck_files_uploaded_or_produced"),
        ),
        sa.CheckConstraint("section IN ('output', 'error')", name=op.f("ck_files_section")),
        sa.CheckConstraint("bytes >= 0", name=op.f("ck_files_bytes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index("ix_files_listing", "files", ["project", "created_at", "id"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scope IN ('admin', 'user')", name=op.f("ck_keys_scope")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=True),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("revision >= 1", name=op.f("ck_models_revision")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("name", "revision", name=op.f("uq_models_name_revision")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column(
            "overrides",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("engine_spec", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("engine_fingerprint", sa.Text(), nullable=True),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("input_key", sa.Text(), nullable=False),
        sa.Column("output_file_id", sa.Text(), nullable=True),
        sa.Column("error_file_id", sa.Text(), nullable=True),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("in_progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finalizing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelling_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("output_expires_after_s", sa.Integer(), nullable=True),
        sa.Column("n_total", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("n_completed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("n_failed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "faults",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'"),
            nullable=False,
        ),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.Text(), nullable=True),
        sa.Column("control_token", sa.UUID(), nullable=True),
        sa.Column("control_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("control_attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "(state = 'cancelled') = (cancelled_at IS NOT NULL)", name=op.f("ck_jobs_cancelled_at")
        ),
        sa.CheckConstraint(
            "(state = 'completed') = (completed_at IS NOT NULL)", name=op.f("ck_jobs_completed_at")
        ),
        sa.CheckConstraint(
            "(state = 'expired') = (expired_at IS NOT NULL)", name=op.f("ck_jobs_expired_at")
        ),
        sa.CheckConstraint(
            "(state = 'failed') = (failed_at IS NOT NULL)", name=op.f("ck_jobs_failed_at")
        ),
        sa.CheckConstraint(
            "(state = 'paused') = (paused_at IS NOT NULL)", name=op.f("ck_jobs_paused_at")
        ),
        sa.CheckConstraint(
            "NOT (state IN ('cancelled', 'completed', 'expired')) OR n_completed + n_failed = n_total",
            name=op.f("ck_jobs_all_accounted"),
        ),
        sa.CheckConstraint("kind IN ('generation')", name=op.f("ck_jobs_kind")),
        sa.CheckConstraint(
            "state IN ('cancelled', 'cancelling', 'completed', 'expired', 'expiring', 'failed', 'finalizing', 'paused', 'queued', 'running', 'validating')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint(
            "state IN ('cancelled', 'cancelling', 'expired', 'expiring', 'failed', 'validating') OR engine_fingerprint IS NOT NULL",
            name=op.f("ck_jobs_engine_pinned"),
        ),
        sa.CheckConstraint(
            "(control_token IS NULL) = (control_until IS NULL)", name=op.f("ck_jobs_control_lease")
        ),
        sa.CheckConstraint(
            "(engine_spec IS NULL) = (engine_fingerprint IS NULL)",
            name=op.f("ck_jobs_engine_whole"),
        ),
        sa.CheckConstraint(
            "(idempotency_key IS NULL) OR (request_hash IS NOT NULL)",
            name=op.f("ck_jobs_idempotency"),
        ),
        sa.ForeignKeyConstraint(
            ["error_file_id"], ["files.id"], name=op.f("fk_jobs_error_file_id")
        ),
        sa.ForeignKeyConstraint(
            ["input_file_id"], ["files.id"], name=op.f("fk_jobs_input_file_id")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_jobs_model_id")),
        sa.ForeignKeyConstraint(
            ["output_file_id"], ["files.id"], name=op.f("fk_jobs_output_file_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint(
            "project", "idempotency_key", name=op.f("uq_jobs_project_idempotency_key")
        ),
    )
    op.create_foreign_key(op.f("fk_files_job_id"), "files", "jobs", ["job_id"], ["id"])
    op.create_index("ix_jobs_listing", "jobs", ["project", "created_at", "id"], unique=False)
    op.create_index(
        "ix_jobs_live",
        "jobs",
        ["state"],
        unique=False,
        postgresql_where=sa.text("NOT (state IN ('cancelled', 'completed', 'expired', 'failed'))"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("device_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("applied", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("load_s", sa.Float(), nullable=False),
        sa.Column("stats", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (end_reason IS NULL)", name=op.f("ck_sessions_ended")
        ),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_sessions_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column(
            "data",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_events")),
    )
    op.create_index("ix_job_events_job", "job_events", ["job_id", "id"], unique=False)
    op.create_table(
        "shards",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("byte_start", sa.BigInteger(), nullable=False),
        sa.Column("byte_end", sa.BigInteger(), nullable=False),
        sa.Column("first_line", sa.Integer(), nullable=False),
        sa.Column("first_index", sa.Integer(), nullable=False),
        sa.Column("n_requests", sa.Integer(), nullable=False),
        sa.Column("est_tokens", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.UUID(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "(state = 'leased') = (holder IS NOT NULL)", name=op.f("ck_shards_holder")
        ),
        sa.CheckConstraint(
            "(state = 'leased') = (lease_token IS NOT NULL)", name=op.f("ck_shards_lease_token")
        ),
        sa.CheckConstraint(
            "(state = 'leased') = (lease_until IS NOT NULL)", name=op.f("ck_shards_lease_until")
        ),
        sa.CheckConstraint("state IN ('done', 'leased', 'pending')", name=op.f("ck_shards_state")),
        sa.CheckConstraint(
            "byte_start >= 0 AND byte_end > byte_start", name=op.f("ck_shards_range")
        ),
        sa.CheckConstraint("n_requests >= 1", name=op.f("ck_shards_n_requests")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_shards_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shards")),
        sa.UniqueConstraint("job_id", "seq", name=op.f("uq_shards_job_id_seq")),
        postgresql_with={
            "fillfactor": "70",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "200",
        },
    )
    op.create_index(
        "ix_shards_leased",
        "shards",
        ["lease_until"],
        unique=False,
        postgresql_where=sa.text("state = 'leased'"),
    )
    op.create_index(
        "ix_shards_pending",
        "shards",
        ["job_id", "seq"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "segments",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("shard_id", sa.BigInteger(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("object_key", sa.Text(), nullable=False),
        sa.Column("output_indexes", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("error_indexes", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("output_bytes", sa.BigInteger(), nullable=False),
        sa.Column("timings_bytes", sa.BigInteger(), nullable=False),
        sa.Column("error_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("n_completed", sa.Integer(), nullable=False),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "n_completed = cardinality(output_indexes)", name=op.f("ck_segments_n_completed")
        ),
        sa.CheckConstraint(
            "n_failed = cardinality(error_indexes)", name=op.f("ck_segments_n_failed")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_segments_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_segments_session_id")
        ),
        sa.ForeignKeyConstraint(
            ["shard_id"], ["shards.id"], name=op.f("fk_segments_shard_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sa.UniqueConstraint("object_key", name=op.f("uq_segments_object_key")),
    )
    op.create_index("ix_segments_job", "segments", ["job_id"], unique=False)
    op.create_index("ix_segments_shard", "segments", ["shard_id"], unique=False)
    op.create_index(
        "uq_segments_final",
        "segments",
        ["shard_id"],
        unique=True,
        postgresql_where=sa.text("final"),
    )
    op.create_table(
        "suspects",
        sa.Column("shard_id", sa.BigInteger(), nullable=False),
        sa.Column("request_index", sa.Integer(), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("strikes >= 0", name=op.f("ck_suspects_strikes")),
        sa.ForeignKeyConstraint(
            ["shard_id"], ["shards.id"], name=op.f("fk_suspects_shard_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("shard_id", "request_index", name=op.f("pk_suspects")),
    )


def downgrade() -> None:
    op.drop_table("suspects")
    op.drop_index("uq_segments_final", table_name="segments", postgresql_where=sa.text("final"))
    op.drop_index("ix_segments_shard", table_name="segments")
    op.drop_index("ix_segments_job", table_name="segments")
    op.drop_table("segments")
    op.drop_index(
        "ix_shards_pending", table_name="shards", postgresql_where=sa.text("state = 'pending'")
    )
    op.drop_index(
        "ix_shards_leased", table_name="shards", postgresql_where=sa.text("state = 'leased'")
    )
    op.drop_table("shards")
    op.drop_index("ix_job_events_job", table_name="job_events")
    op.drop_table("job_events")
    op.drop_table("sessions")
    op.drop_index(
        "ix_jobs_live",
        table_name="jobs",
        postgresql_where=sa.text("NOT (state IN ('cancelled', 'completed', 'expired', 'failed'))"),
    )
    op.drop_index("ix_jobs_listing", table_name="jobs")
    op.drop_constraint(op.f("fk_files_job_id"), "files")
    op.drop_table("jobs")
    op.drop_table("models")
    op.drop_table("keys")
    op.drop_index("ix_files_listing", table_name="files")
    op.drop_table("files")
    op.drop_table("devices")
