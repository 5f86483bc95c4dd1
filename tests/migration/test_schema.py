"""The migrations make just the schema that storage/tables.py declares."""

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, Engine, create_engine, inspect, text
from sqlalchemy.exc import IntegrityError

from batchgen.storage.migrate import config, is_current, upgrade
from batchgen.storage.tables import metadata


def test_the_migrated_schema_is_the_declared_one(database_url: str) -> None:
    engine = create_engine(database_url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"compare_type": True, "compare_server_default": True}
            )
            assert compare_metadata(context, metadata) == []
            assert _checks(connection) == _declared_checks()
    finally:
        engine.dispose()


def test_migrations_run_down_to_nothing_and_up_again(database_url: str) -> None:
    assert is_current(database_url)
    command.downgrade(config(database_url), "base")
    assert not is_current(database_url)
    upgrade(database_url)
    upgrade(database_url)
    assert is_current(database_url)


def test_the_database_refuses_what_the_code_would_never_write(database_url: str) -> None:
    engine = create_engine(database_url)
    wrong = {
        "a leased shard without a token": """INSERT INTO shards (job_id, seq, byte_start, byte_end,
            first_line, first_index, n_requests, est_tokens, state)
            VALUES ('j', 0, 0, 1, 1, 0, 1, 1, 'leased')""",
        "an unknown state": "UPDATE jobs SET state = 'resting'",
        "a completed job without its time": "UPDATE jobs SET state = 'completed'",
        "a cancelled job with open lines": (
            "UPDATE jobs SET state = 'cancelled', cancelled_at = now(), n_total = 1"
        ),
        "a running job without an engine": "UPDATE jobs SET state = 'running'",
        "a file that is neither uploaded nor produced": "UPDATE files SET object_key = NULL",
    }
    try:
        with engine.begin() as tx:
            tx.execute(
                text("""INSERT INTO files
                        (id, project, purpose, filename, bytes, sha256, object_key)
                        VALUES ('f', 'p', 'batch', 'x', 1, '', 'k')""")
            )
            tx.execute(
                text("""INSERT INTO jobs (id, project, kind, state, endpoint, input_file_id,
                        input_key, completion_window, expires_at) VALUES ('j', 'p', 'generation',
                        'validating', '/v1/chat/completions', 'f', 'k', '24h', now())""")
            )
        for what, statement in wrong.items():
            assert _refused(engine, statement), what
    finally:
        engine.dispose()


def _refused(engine: Engine, statement: str) -> bool:
    try:
        with engine.begin() as tx:
            tx.execute(text(statement))
    except IntegrityError:
        return True
    return False


def _checks(connection: Connection) -> set[tuple[str, str]]:
    look = inspect(connection)
    return {
        (table, check["name"])
        for table in metadata.tables
        for check in look.get_check_constraints(table)
    }


def _declared_checks() -> set[tuple[str, str]]:
    return {
        (table.name, str(check.name))
        for table in metadata.tables.values()
        for check in table.constraints
        if isinstance(check, CheckConstraint)
    } | {
        (table.name, str(check.name))
        for table in metadata.tables.values()
        for column in table.columns
        for check in column.constraints
        if isinstance(check, CheckConstraint)
    }
