"""the whole openvino engine: caches, checks and what came with them"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _now(name: str) -> sa.Column[object]:
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    )


def upgrade() -> None:
    _model_checks()
    op.add_column("devices", sa.Column("memory_bytes", sa.BigInteger(), nullable=True))
    # What lay in a model's directories when it was registered.
    op.add_column("models", sa.Column("draft_content_hash", sa.Text(), nullable=True))
    op.add_column("models", sa.Column("seal", postgresql.JSONB(), nullable=True))
    # Whose clock a session's timings are of.
    op.add_column("sessions", sa.Column("boot_id", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("monotonic_ns", sa.BigInteger(), nullable=True))
    for table in ("jobs", "segments"):
        op.add_column(
            table,
            sa.Column(
                "reasoning_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False
            ),
        )
    # All sessions that a segment's lines ran in, where there was one.
    op.add_column(
        "segments",
        sa.Column(
            "session_ids",
            postgresql.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
    )
    op.execute("UPDATE segments SET session_ids = ARRAY[session_id] WHERE session_id IS NOT NULL")
    op.drop_column("segments", "session_id")
    op.add_column(
        "jobs",
        sa.Column("ordering", sa.Text(), server_default=sa.text("'prefix'"), nullable=False),
    )
    op.create_check_constraint(op.f("ck_jobs_ordering"), "jobs", "ordering IN ('input', 'prefix')")
    op.create_table(
        "compile_caches",
        sa.Column("root_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("root_path", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("identity", postgresql.JSONB(), nullable=False),
        sa.Column("model_path", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("n_files", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _now("created_at"),
        _now("last_used_at"),
        sa.Column("used_by", sa.Text(), nullable=True),
        sa.Column("writer", sa.Text(), nullable=True),
        sa.Column("writer_token", sa.UUID(), nullable=True),
        sa.Column("writer_deed", sa.Text(), nullable=True),
        sa.Column("writer_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("doomed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('empty', 'usable', 'rejected', 'quarantined')",
            name=op.f("ck_compile_caches_state"),
        ),
        sa.CheckConstraint(
            "(state IN ('rejected', 'quarantined')) = (reason IS NOT NULL)",
            name=op.f("ck_compile_caches_reason"),
        ),
        sa.CheckConstraint("bytes >= 0 AND n_files >= 0", name=op.f("ck_compile_caches_sizes")),
        sa.CheckConstraint(
            "(writer_token IS NULL) = (writer_until IS NULL)",
            name=op.f("ck_compile_caches_writer_until"),
        ),
        sa.CheckConstraint(
            "(writer_token IS NULL) = (writer IS NULL)", name=op.f("ck_compile_caches_writer")
        ),
        sa.CheckConstraint(
            "(writer_token IS NULL) = (writer_deed IS NULL)",
            name=op.f("ck_compile_caches_writer_deed"),
        ),
        sa.CheckConstraint(
            "writer_deed IN ('compile', 'remove')", name=op.f("ck_compile_caches_deed")
        ),
        sa.PrimaryKeyConstraint("root_id", "name", name=op.f("pk_compile_caches")),
    )
    op.create_table(
        "compile_cache_uses",
        sa.Column("device_id", sa.Text(), nullable=False),
        sa.Column("root_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("identity", postgresql.JSONB(), nullable=False),
        _now("since"),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.id"], name=op.f("fk_compile_cache_uses_device_id")
        ),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_compile_cache_uses")),
    )
    op.create_index("ix_compile_cache_uses_entry", "compile_cache_uses", ["root_id", "name"])


def downgrade() -> None:
    op.drop_column("segments", "reasoning_tokens")
    op.drop_column("jobs", "reasoning_tokens")
    op.drop_column("models", "seal")
    op.drop_column("models", "draft_content_hash")
    op.drop_column("devices", "memory_bytes")
    op.drop_table("model_checks")
    op.add_column("segments", sa.Column("session_id", sa.Text(), nullable=True))
    op.create_foreign_key(
        op.f("fk_segments_session_id"), "segments", "sessions", ["session_id"], ["id"]
    )
    op.execute("UPDATE segments SET session_id = session_ids[cardinality(session_ids)]")
    op.drop_column("segments", "session_ids")
    op.drop_column("sessions", "monotonic_ns")
    op.drop_column("sessions", "boot_id")
    op.drop_index("ix_compile_cache_uses_entry", table_name="compile_cache_uses")
    op.drop_table("compile_cache_uses")
    op.drop_table("compile_caches")
    op.drop_column("jobs", "ordering")


def _model_checks() -> None:
    """Checks of models: what a device makes of one."""

    def when(name: str, *, null: bool = True) -> sa.Column[object]:
        return sa.Column(name, sa.DateTime(timezone=True), nullable=null)

    checks = {
        "ended_at": "(state IN ('expired', 'failed', 'passed')) = (ended_at IS NOT NULL)",
        "lease_token": "(state = 'running') = (lease_token IS NOT NULL)",
        "lease_until": "(state = 'running') = (lease_until IS NOT NULL)",
        "max_tokens": "max_tokens >= 1",
        "reason": "(state IN ('failed', 'expired')) = (reason IS NOT NULL)",
        "report": "(state = 'passed') = (report IS NOT NULL)",
        "state": "state IN ('expired', 'failed', 'passed', 'running', 'waiting')",
    }
    op.create_table(
        "model_checks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=False),
        sa.Column("engine_spec", postgresql.JSONB(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("device", sa.Text()),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("wait_s", sa.Float(), nullable=False),
        sa.Column("warnings", postgresql.JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lease_token", postgresql.UUID(as_uuid=True)),
        when("lease_until"),
        sa.Column("holder", sa.Text()),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("report", postgresql.JSONB()),
        sa.Column("reason", sa.Text()),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        when("expires_at", null=False),
        when("ended_at"),
        *(
            sa.CheckConstraint(rule, name=op.f(f"ck_model_checks_{name}"))
            for name, rule in checks.items()
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_checks_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_checks")),
    )
    op.create_index(
        "ix_model_checks_open",
        "model_checks",
        ["pool", "created_at"],
        postgresql_where=sa.text("state IN ('waiting', 'running')"),
    )
