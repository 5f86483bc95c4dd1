"""Brings a database to this version's schema and gives it its first key.

`python -m batchgen.local.schema` does so for the database that the settings name and keeps the key
in the data directory: the first step where outside servers are used, as in docker-compose.yml.
"""

import socket
import sys

from sqlalchemy.exc import SQLAlchemyError

from batchgen.domain.errors import BatchgenError, StackError
from batchgen.domain.jobs import Scope
from batchgen.local.credentials import Credentials, credentials_path, write_credentials
from batchgen.services.keys import create, ensure_first_key
from batchgen.settings import Settings
from batchgen.storage.migrate import upgrade
from batchgen.storage.session import Database


def prepare(database_url: str, *, replace_lost_key: bool = False) -> str | None:
    """Migrate; returns the first API key where there was none. Raises StackError.

    With `replace_lost_key` a further admin key is made where there are keys already: for the owner
    of an embedded database whose kept key is gone, be it by a kill between its making and keeping.
    """
    try:
        upgrade(database_url)
        first_key = ensure_first_key(database_url)
        if first_key is not None or not replace_lost_key:
            return first_key
        database = Database(database_url, pool_size=1)
        try:
            return create(database, name=f"up on {socket.gethostname()}", scope=Scope.ADMIN)[1]
        finally:
            database.close()
    except (SQLAlchemyError, BatchgenError) as error:
        cause = getattr(error, "orig", None) or error
        raise StackError(
            f"the database cannot be brought to this version's schema: {cause}; `batchgen doctor` "
            "looks closer"
        ) from error


def main() -> None:
    try:
        settings = Settings.read()
        if not settings.database_url:
            sys.exit("BATCHGEN_DATABASE_URL is not set: it names the database to prepare")
        first_key = prepare(settings.database_url)
        if first_key is not None:
            settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_credentials(settings, Credentials(settings.api_url, first_key))
            print(f"the first API key is in {credentials_path(settings)}")  # noqa: T201 (a program)
    except BatchgenError as error:
        sys.exit(str(error))
    print("the database is ready")  # noqa: T201 (a program)


if __name__ == "__main__":
    main()
