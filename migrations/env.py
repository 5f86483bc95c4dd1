"""What alembic runs: the connection comes from the caller, or is made from the URL it gives."""

from alembic import context
from sqlalchemy import Connection, NullPool, create_engine

from batchgen.storage.tables import metadata


def _run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, compare_server_default=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    engine = create_engine(context.config.attributes["url"], poolclass=NullPool)
    with engine.begin() as made:
        _run(made)
