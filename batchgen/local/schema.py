"""Brings a database to this version's schema and gives it its first key."""

from sqlalchemy.exc import SQLAlchemyError

from batchgen.domain.errors import BatchgenError, StackError
from batchgen.services.keys import ensure_first_key
from batchgen.storage.migrate import upgrade


def prepare(database_url: str) -> str | None:
    """Migrate; returns the first API key where there was none. Raises StackError."""
    try:
        upgrade(database_url)
        return ensure_first_key(database_url)
    except (SQLAlchemyError, BatchgenError) as error:
        cause = getattr(error, "orig", None) or error
        raise StackError(
            f"the database cannot be brought to this version's schema: {cause}; `batchgen doctor` "
            "looks closer"
        ) from error
