"""Who listens hears of what was told, is cheap while nothing is, and gives a lost server rest."""

from datetime import UTC, datetime

from sqlalchemy import create_engine, make_url, text

from batchgen.local.postgres import EmbeddedPostgres
from batchgen.storage.listen import REST_S, Listener
from batchgen.storage.session import Database
from tests.waiting import until

CHANNEL = "news"


class MovedClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


def tell(database: Database, what: str) -> None:
    with database.unit_of_work() as tx:
        tx.execute(text("SELECT pg_notify(:channel, :what)"), {"channel": CHANNEL, "what": what})


def end_other_connections(database: Database) -> None:
    with database.unit_of_work() as tx:
        tx.execute(
            text("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()""")
        )


def let_in(server: EmbeddedPostgres, database_url: str, *, who_comes: bool) -> None:
    name = make_url(database_url).database
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {who_comes}'))
    engine.dispose()


def test_what_was_told_is_heard_once(database: Database, database_url: str) -> None:
    listener = Listener(database_url, [CHANNEL])
    assert listener.drain() == []
    tell(database, "one")
    assert until(listener.drain) == [(CHANNEL, "one")]
    assert listener.drain() == []
    listener.close()


def test_a_lost_connection_comes_back_after_a_rest(database: Database, database_url: str) -> None:
    clock = MovedClock()
    listener = Listener(database_url, [CHANNEL], clock=clock)
    assert listener.drain() == []
    end_other_connections(database)
    until(lambda: listener.drain() == [] and listener.fileno() is None)
    clock.at += REST_S * 0.9
    assert listener.fileno() is None
    clock.at += REST_S * 0.2
    assert listener.fileno() is not None
    tell(database, "two")
    assert until(listener.drain) == [(CHANNEL, "two")]
    listener.close()


def test_a_server_that_refuses_is_not_asked_again_before_its_rest(
    postgres: EmbeddedPostgres, database_url: str
) -> None:
    clock = MovedClock()
    listener = Listener(database_url, [CHANNEL], clock=clock)
    let_in(postgres, database_url, who_comes=False)
    assert listener.fileno() is None
    let_in(postgres, database_url, who_comes=True)
    for _ in range(3):
        assert listener.fileno() is None
        assert listener.drain() == []
    clock.at += REST_S * 1.1
    assert listener.fileno() is not None
    listener.close()
