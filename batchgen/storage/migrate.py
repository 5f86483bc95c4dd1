"""Bring a database to the schema of this version."""

from functools import cache
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text

# Two programs that start at once must not migrate at once.
_LOCK = 0x62617463


def config(url: str) -> Config:
    """Alembic's configuration for this project's migrations and the database at `url`."""
    out = Config()
    out.set_main_option("script_location", str(files("migrations")))
    out.attributes["url"] = url
    return out


def upgrade(url: str) -> None:
    """Run the migrations that are missing, one program at a time; does nothing where none is."""
    engine = create_engine(url)
    try:
        with engine.begin() as tx:
            tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            settings = config(url)
            head = ScriptDirectory.from_config(settings).get_current_head()
            if MigrationContext.configure(tx).get_current_revision() == head:
                return
            settings.attributes["connection"] = tx
            command.upgrade(settings, "head")
    finally:
        engine.dispose()


def is_current(url: str) -> bool:
    """Whether the database has the schema of this version."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            head = ScriptDirectory.from_config(config(url)).get_current_head()
            return MigrationContext.configure(connection).get_current_revision() == head
    finally:
        engine.dispose()


@cache
def head_revision() -> str | None:
    """The newest migration of this version; it cannot change while the program runs."""
    return ScriptDirectory.from_config(config("")).get_current_head()


def revision_of(tx: Connection) -> str | None:
    """The migration that this database has come to; None for an empty database."""
    return MigrationContext.configure(tx).get_current_revision()
