"""What most tests stand on: real servers once a run, a database of its own for each test.

`database_url` is a clone of a migrated template, dropped after the test; `settings`, `database` and
`store` are what a process would make of it. `api_server` is the URL of the real API, opened by
`admin_key` and `user_key` (project `default`) and `other_key` (project `other`). `settings` name no
broker, so no bell rings; a test that wants one takes `servers.broker_url`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as profiles
from sqlalchemy import create_engine, text

from batchgen.domain.ids import Project
from batchgen.domain.jobs import Scope
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.local.valkey import EmbeddedValkey
from batchgen.services import keys
from batchgen.settings import Settings
from batchgen.storage.migrate import upgrade
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.serving import serving

_TEMPLATE = "template_of_tests"

# A busy machine is slow at times: that is no fault of what is tested.
profiles.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
profiles.load_profile("house")

# Log lines go where pytest shows them beside a failure, and tracebacks without their locals.
structlog.configure(
    processors=[
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    logger_factory=structlog.stdlib.LoggerFactory(),
)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of this run."""

    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey

    @property
    def broker_url(self) -> str:
        return self.valkey.url


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server with a migrated template database; started by the first test that needs it."""
    home = tmp_path_factory.mktemp("pg")
    with EmbeddedPostgres(home / "pg", log_path=home / "log", durable=False) as server:
        _admin(server, f"CREATE DATABASE {_TEMPLATE}")
        upgrade(server.url_of(_TEMPLATE))
        yield server


@pytest.fixture(scope="session")
def servers(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """Postgres and a broker."""
    home = tmp_path_factory.mktemp("valkey")
    with EmbeddedValkey(home / "valkey", log_path=home / "log") as valkey:
        yield Servers(postgres, valkey)


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
    return Settings(data_dir=tmp_path / "data", database_url=database_url, broker_url="")


@pytest.fixture
def api_server(settings: Settings) -> Iterator[str]:
    """The URL, without a path, of the API in a thread of this process, behind a real socket."""
    with serving(settings) as url:
        yield url


@pytest.fixture
def admin_key(database: Database) -> str:
    return keys.create(database, name="admin", scope=Scope.ADMIN)[1]


@pytest.fixture
def user_key(database: Database) -> str:
    return keys.create(database, name="user", scope=Scope.USER)[1]


@pytest.fixture
def other_key(database: Database) -> str:
    """A key of another project."""
    return keys.create(database, name="other", scope=Scope.USER, project=Project("other"))[1]


def _admin(server: EmbeddedPostgres, statement: str) -> None:
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
