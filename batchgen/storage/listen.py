"""Hear the database's notifications. They are hints: whoever listens also looks by the clock."""

from collections.abc import Sequence

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url


class Listener:
    """A connection that listens on some channels; it comes back by itself after a loss."""

    def __init__(self, database_url: str, channels: Sequence[str]) -> None:
        url = make_url(database_url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._channels = list(channels)
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def fileno(self) -> int | None:
        """For select; None while there is no connection."""
        connection = self._connected()
        return None if connection is None else connection.fileno()

    def drain(self) -> list[tuple[str, str]]:
        """(channel, payload) of what has come since; a lost connection is an empty list."""
        connection = self._connected()
        if connection is None:
            return []
        try:
            return [(n.channel, n.payload) for n in connection.notifies(timeout=0)]
        except psycopg.Error:
            self.close()
            return []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> "psycopg.Connection[tuple[object, ...]] | None":
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            made = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=2)
            for channel in self._channels:
                made.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except psycopg.Error:
            return None
        self._connection = made
        return made
