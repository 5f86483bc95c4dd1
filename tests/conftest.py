"""What most tests stand on: a Postgres of this run, a database of one's own, a store, settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from batchgen.local.postgres import EmbeddedPostgres
from batchgen.settings import Settings
from batchgen.storage.migrate import upgrade
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

_TEMPLATE = "template_of_tests"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server with a migrated template database; started by the first test that needs it."""
    home = tmp_path_factory.mktemp("pg")
    with EmbeddedPostgres(home / "pg", log_path=home / "log", durable=False) as server:
        _admin(server, f"CREATE DATABASE {_TEMPLATE}")
        upgrade(server.url_of(_TEMPLATE))
        yield server


@pytest.fixture
def database_url(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated, empty database that is this test's alone."""
    name = f"test_{abs(hash(request.node.nodeid)):x}"
    _admin(postgres, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
    yield postgres.url_of(name)
    _admin(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    found = Database(database_url)
    yield found
    found.close()


@pytest.fixture
def store(settings: Settings) -> ObjectStore:
    return ObjectStore.from_url(settings.store)


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=database_url)


def _admin(server: EmbeddedPostgres, statement: str) -> None:
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
