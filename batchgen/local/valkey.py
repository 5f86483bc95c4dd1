"""An embedded Valkey: the broker of a machine that has none."""

import contextlib
import os
import socket
import time
from pathlib import Path
from signal import SIGTERM, Signals
from types import TracebackType
from typing import Self

from batchgen.domain.errors import StackError
from batchgen.local import binaries, logs, orphans
from batchgen.local.lock import DirectoryLock
from batchgen.local.sockets import forget_socket_directory, socket_directory
from batchgen.local.spawn import Child, end, spawn

_STOP: tuple[tuple[Signals, float], ...] = ((SIGTERM, 2.0),)


class EmbeddedValkey:
    """A Valkey in the directory `home`, reached by a Unix socket only.

    It holds nothing but doorbells, so it writes nothing to disk: a restart forgets all, by design.
    The file permissions of the socket and its directory are the access control.
    """

    def __init__(self, home: Path, *, log_path: Path, start_timeout_s: float = 10.0):
        self._home = home.absolute()
        self._log_path = log_path.absolute()
        self._start_timeout_s = start_timeout_s
        self._lock = DirectoryLock(self._home / "lock")
        self._child: Child | None = None
        self._sockets: Path | None = None

    @property
    def socket_path(self) -> Path:
        """Where it listens. Raises StackError before the start."""
        if self._sockets is None:
            raise StackError(f"the Valkey of {self._home} has not been started")
        return self._sockets / "valkey.sock"

    @property
    def url(self) -> str:
        """For Celery and kombu, which take database 0 of it."""
        return f"redis+socket://{self.socket_path}"

    @property
    def redis_url(self) -> str:
        """The same for the redis package, which calls the scheme `unix`."""
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start it and wait until it answers; does nothing where it already runs.

        What an earlier process left running on this directory is stopped first. Raises StackError
        where another process uses the directory or the server does not come up.
        """
        if self.is_alive():
            return
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.acquire(
            what=f"the Valkey in {self._home}", mend="stop that process or choose another directory"
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        if self._child is not None:  # died, or lost its socket
            end(self._child, _STOP)
        orphans.stop(self._home, {"valkey-server"}, _STOP, what="an earlier Valkey")
        self._sockets = socket_directory(self._home, uid=os.geteuid())
        self.socket_path.unlink(missing_ok=True)
        self._child = spawn(
            [
                binaries.valkey(),
                *("--port", "0"),
                *("--unixsocket", str(self.socket_path), "--unixsocketperm", "700"),
                *("--save", "", "--appendonly", "no"),
                *("--maxmemory-policy", "noeviction"),
                *("--daemonize", "no", "--logfile", "", "--loglevel", "warning"),
                # Its title would else replace the name by which orphans are known.
                *("--set-proc-title", "no"),
            ],
            log_path=self._log_path,
            death_signal=SIGTERM,
            cwd=self._home,
            clean_environment=True,
        )
        self._wait_until_it_answers(self._child)

    def _wait_until_it_answers(self, child: Child) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not self.answers():
            code = child.poll()
            if code is not None:
                raise StackError(
                    f"Valkey in {self._home} ended with {code}; its log {self._log_path} ends "
                    f"with:\n{logs.tail(self._log_path)}"
                )
            if time.monotonic() > deadline:
                raise StackError(
                    f"Valkey in {self._home} does not answer after {self._start_timeout_s:g} s; "
                    f"its log {self._log_path} ends with:\n{logs.tail(self._log_path)}"
                )
            time.sleep(0.005)

    def answers(self, *, timeout_s: float = 1.0) -> bool:
        """Whether it answers a PING within `timeout_s`."""
        if self._sockets is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(timeout_s)
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def is_alive(self) -> bool:
        """Whether its process runs and its socket is there (something may have swept /tmp)."""
        return self._child is not None and self._child.poll() is None and self.socket_path.exists()

    def recover(self) -> bool:
        """Start it again where it has died; says whether that was needed."""
        if self.is_alive():
            return False
        self.start()
        return True

    def stop(self) -> None:
        """Stop it, by force after 2 s; harmless where it does not run."""
        if self._child is not None:
            end(self._child, _STOP)
            self._child = None
        if self._sockets is not None:
            with contextlib.suppress(OSError):
                self.socket_path.unlink(missing_ok=True)
            forget_socket_directory(self._home, self._sockets)
            self._sockets = None
        self._lock.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
