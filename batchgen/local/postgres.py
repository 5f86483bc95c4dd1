"""An embedded Postgres: the database of a machine that has none."""

import contextlib
import os
import time
from pathlib import Path
from signal import SIGINT, SIGQUIT, Signals
from types import TracebackType
from typing import Self
from urllib.parse import quote

from batchgen.domain.errors import StackError
from batchgen.local import binaries, initdb, logs, orphans
from batchgen.local.identity import Identity, give, identity_for_postgres
from batchgen.local.lock import DirectoryLock
from batchgen.local.sockets import forget_socket_directory, socket_directory
from batchgen.local.spawn import Child, end, spawn

_PORT = 5432  # names the socket; no TCP port is opened
# SIGINT: a fast shutdown, clients are cut off and a checkpoint is written. SIGQUIT: an immediate
# one, with recovery at the next start, and safe: what was committed is on disk. The patience is
# short because the whole stack has to stop within 10 s.
_STOP: tuple[tuple[Signals, float], ...] = ((SIGINT, 2.5), (SIGQUIT, 0.5))

_SETTINGS = {
    "listen_addresses": "",
    "port": str(_PORT),
    "unix_socket_permissions": "0700",
    "cluster_name": "batchgen",
    "max_connections": "100",
    # A frozen process must not hold its locks for ever.
    "idle_in_transaction_session_timeout": "30s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    # Prompts are in statements, parameters and failing rows: none of them is logged.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    # One server, no replicas: less to write, fewer processes.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "log_checkpoints": "off",
    "io_method": "sync",
    # Containers have 64 MB of /dev/shm, which parallel plans overrun.
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "jit": "off",
}


class EmbeddedPostgres:
    """A Postgres in the directory `home`, reached by a Unix socket only.

    The file permissions of the socket and its directory are the access control. `durable=False`
    is for tests: a crash of the machine may then lose everything.
    """

    def __init__(
        self,
        home: Path,
        *,
        log_path: Path,
        durable: bool = True,
        identity: Identity | None = None,
        start_timeout_s: float = 300.0,
    ):
        self._home = home.absolute()
        self._data = self._home / "data"
        self._log_path = log_path.absolute()
        self._durable = durable
        self._identity = identity
        self._start_timeout_s = start_timeout_s  # recovery after a crash may take its time
        self._lock = DirectoryLock(self._home / "lock")
        self._child: Child | None = None
        self._sockets: Path | None = None

    @property
    def socket_path(self) -> Path:
        """Where it listens. Raises StackError before the start."""
        if self._sockets is None:
            raise StackError(f"the Postgres of {self._home} has not been started")
        return self._sockets / f".s.PGSQL.{_PORT}"

    @property
    def url(self) -> str:
        """For SQLAlchemy, with the psycopg driver."""
        return self.url_of(initdb.DATABASE)

    def url_of(self, database: str) -> str:
        """For SQLAlchemy, another database of this server."""
        host = quote(str(self.socket_path.parent), safe="")
        return f"postgresql+psycopg://{initdb.USER}@/{quote(database, safe='')}?host={host}"

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start it, made first where there is none yet, and wait until it takes connections.

        Does nothing where it already runs. What an earlier process left running on this directory
        is stopped first; after a crash the server recovers by its log. Raises StackError where
        another process uses the directory, another version wrote it, or the server does not come
        up.
        """
        if self.is_alive():
            return
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.acquire(
            what=f"the Postgres in {self._home}",
            mend="stop that process or choose another directory",
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        if self._child is not None:  # died, or lost its socket
            end(self._child, _STOP)
        self._prepare_cluster()
        identity = self._identity_here()
        self._sockets = socket_directory(self._home, uid=identity.uid)
        for leftover in (
            self.socket_path,
            self.socket_path.with_name(f"{self.socket_path.name}.lock"),
        ):
            leftover.unlink(missing_ok=True)
        settings = _SETTINGS | {"unix_socket_directories": str(self._sockets)}
        if not self._durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        self._child = spawn(
            [
                *(binaries.postgres(), "-D", self._data),
                *(part for key, value in settings.items() for part in ("-c", f"{key}={value}")),
            ],
            log_path=self._log_path,
            death_signal=SIGINT,
            cwd=self._data,
            identity=identity,
            clean_environment=True,
        )
        self._wait_until_ready(self._child)

    def _identity_here(self) -> Identity:
        if self._identity is None:
            self._identity = identity_for_postgres(self._home, binaries.postgres())
        return self._identity

    def _prepare_cluster(self) -> None:
        """Leave a whole cluster of our version and owner on which nothing runs."""
        identity = self._identity_here()
        if identity.uid != os.geteuid():
            self._home.chmod(0o711)  # it must pass through; what lies inside is closed by itself
        if not self._data.exists():
            initdb.create_cluster(
                self._data, identity=identity, log_path=self._log_path, durable=self._durable
            )
            return
        initdb.sweep_unfinished(self._data)
        initdb.check_version(self._data)
        orphans.stop(self._data, {"postgres"}, _STOP, what="an earlier Postgres")
        give(self._data, identity.uid)
        self._data.chmod(0o700)
        self._drop_stale_pid_file()

    def _drop_stale_pid_file(self) -> None:
        """Remove a postmaster.pid that names a stranger.

        Postgres itself sees through the file of a process that is gone, but takes any process
        with that id for a server. We hold the lock and have stopped what ran here: it is none.
        """
        path = self._data / "postmaster.pid"
        try:
            pid = path.read_text().partition("\n")[0].strip()
        except FileNotFoundError:
            return
        if not pid.isdigit() or Path(f"/proc/{pid}").exists():
            path.unlink()

    def _wait_until_ready(self, child: Child) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not self._says_ready(child):
            code = child.poll()
            if code is not None:
                raise StackError(
                    f"Postgres in {self._home} ended with {code}; its log {self._log_path} ends "
                    f"with:\n{logs.tail(self._log_path)}"
                )
            if time.monotonic() > deadline:
                raise StackError(
                    f"Postgres in {self._home} is not ready after {self._start_timeout_s:g} s; "
                    f"its log {self._log_path} ends with:\n{logs.tail(self._log_path)}"
                )
            time.sleep(0.005)

    def _says_ready(self, child: Child) -> bool:
        """Its pid file says so in line 8, as pg_ctl reads it."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(child.pid) and lines[7].strip() == "ready"

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
        """Stop it, by force after 3 s; harmless where it does not run."""
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
