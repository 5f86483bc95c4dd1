"""The database and its unit of work: the sole place that commits."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from batchgen.domain.errors import Unavailable

# A transaction that waits for long holds others up: nothing here needs more than seconds.
_SESSION_OPTIONS = (
    "-c timezone=UTC -c statement_timeout=120000 -c idle_in_transaction_session_timeout=60000"
)


class Database:
    """A pool of connections to one Postgres. Safe to share between threads, not across a fork."""

    def __init__(self, url: str, *, pool_size: int = 5) -> None:
        self.url = url
        self.engine: sqlalchemy.Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_pre_ping=True,
            # Values are what users handed in: no exception and no log shall repeat them.
            hide_parameters=True,
            connect_args={
                "connect_timeout": 5,
                # A network that swallows everything ends a connection instead of a worker's
                # patience.
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 20_000,
                "options": _SESSION_OPTIONS,
                "application_name": "batchgen",
            },
        )

    @contextmanager
    def unit_of_work(self) -> Iterator[Connection]:
        """One transaction: commits at the end, rolls back on any exception.

        Raises Unavailable where the server cannot be reached, went away, or cannot do it now: tried
        again later, the same may succeed.
        """
        try:
            with self.engine.begin() as tx:
                yield tx
        except PoolTimeout as error:
            raise Unavailable("all connections to the database are busy") from error
        except DBAPIError as error:
            if error.connection_invalidated or _passes(error):
                raise Unavailable(f"the database cannot do it now: {error.orig}") from error
            raise
        except psycopg.OperationalError as error:
            # A COPY speaks to the driver itself.
            raise Unavailable(f"the database cannot do it now: {error}") from error

    def close(self) -> None:
        self.engine.dispose()


def _passes(error: DBAPIError) -> bool:
    """Whether the error says something of the server's moment and nothing of the statement."""
    # Errors of a statement carry an SQLSTATE; failures to connect do not. The others: no connection
    # (08), a session that was silent for too long (25P03), deadlock and the like (40), no disk or
    # memory left (53), a lock or an answer that did not come in time (55P03, 57014), shutdown
    # (57P), the server's own disk (58).
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    passing = ("08", "25P03", "40", "53", "55P03", "57014", "57P", "58")
    return bool(state.startswith(passing))
