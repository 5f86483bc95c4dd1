"""Hear the database's notifications. They are hints: whoever listens also looks by the clock."""

import select
from collections.abc import Sequence

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from batchgen.domain.clock import Clock, SystemClock

# A server that is away is not asked again before: each try may take its whole time to connect.
REST_S = 1.0


class Listener:
    """A connection that listens on some channels; it comes back by itself after a loss."""

    def __init__(
        self, database_url: str, channels: Sequence[str], *, clock: Clock | None = None
    ) -> None:
        url = make_url(database_url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._channels = list(channels)
        self._clock = clock or SystemClock()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._fd = -1
        self._incoming = select.poll()
        # What came while the channels were asked for has been read already: no descriptor tells.
        self._unread = False
        self._not_before = float("-inf")

    def fileno(self) -> int | None:
        """For select; None while there is no connection. Tries to connect, at most once a
        second.
        """
        connection = self._connected()
        return None if connection is None else self._fd

    def drain(self) -> list[tuple[str, str]]:
        """(channel, payload) of what has come since; a lost connection is an empty list.

        Costs one system call where nothing has come.
        """
        connection = self._connected()
        if connection is None or not (self._unread or self._incoming.poll(0)):
            return []
        self._unread = False
        try:
            return [(n.channel, n.payload) for n in connection.notifies(timeout=0)]
        except psycopg.Error:
            self._lose()
            return []

    def close(self) -> None:
        if self._connection is not None:
            self._incoming.unregister(self._fd)
            self._connection.close()
            self._connection = None

    def _lose(self) -> None:
        self.close()
        self._not_before = self._clock.monotonic() + REST_S

    def _connected(self) -> "psycopg.Connection[tuple[object, ...]] | None":
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._clock.monotonic() < self._not_before:
            return None
        self.close()
        try:
            made = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=2)
            for channel in self._channels:
                made.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except psycopg.Error:
            self._lose()
            return None
        self._connection, self._fd, self._unread = made, made.fileno(), True
        self._incoming.register(self._fd, select.POLLIN)
        return made
