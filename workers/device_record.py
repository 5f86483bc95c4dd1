"""A device's row: who serves it, under which lock, and what the worker is doing."""

import fcntl
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection

from batchgen.domain.errors import Conflict
from batchgen.domain.ids import DeviceId, SessionId
from batchgen.storage import caches, devices, model_checks, shards
from batchgen.storage.job_events import CHANNEL
from batchgen.storage.listen import Listener
from batchgen.storage.shards import WORK_CHANNEL
from workers.context import Context


class DeviceRecord:
    """This worker's claim on a device. One worker a device: made sure of by a lock file on this
    machine, and by the row's heartbeat between machines.
    """

    def __init__(self, context: Context, device: str, pool: str) -> None:
        self.device = device
        self.pool = pool
        self.host = socket.gethostname()
        self.id = DeviceId(f"{self.host}/{device}")
        self._context = context
        self._token = uuid.uuid4()
        self._lock: int | None = None
        self.listener = Listener(context.settings.database_url, [CHANNEL, WORK_CHANNEL])

    def take(self) -> int:
        """Lock and register the device, and free what a dead predecessor held; returns how many
        shards.

        Raises Conflict where another worker serves it.
        """
        path = self._lock_path()
        self._lock = _locked(path, self.id)
        try:
            with self._context.database.unit_of_work() as tx:
                devices.register(
                    tx,
                    device_id=self.id,
                    host=self.host,
                    device=self.device,
                    pool=self.pool,
                    worker_token=self._token,
                    lock_path=str(path),
                    lease_s=self._context.settings.lease_s,
                )
                devices.close_sessions_of(tx, self.id, "its worker died")
                caches.leave(tx, self.id)
                model_checks.release_all_of(tx, self.id)
                return shards.release_all_of(tx, self.id)
        except BaseException:
            self._unlock()
            raise

    def beat(self, state: str, detail: str | None = None) -> None:
        """Raises LostLease where another worker has the device, Unavailable."""
        with self._context.database.unit_of_work() as tx:
            self.beat_in(tx, state, detail=detail)

    def beat_in(
        self,
        tx: Connection,
        state: str,
        *,
        detail: str | None = None,
        session_id: SessionId | None = None,
    ) -> None:
        """The same within a transaction of the caller's."""
        devices.beat(tx, self.id, self._token, state=state, detail=detail, session_id=session_id)

    def left_to_others(self, tx: Connection, unfit: Sequence[str]) -> list[str]:
        """Of the engines that cannot be loaded here, those that another worker may load.

        Makes known which they are: a worker that has failed too is no hope for others.
        """
        devices.set_unfit(tx, self.id, self._token, unfit)
        lease_s = self._context.settings.lease_s
        return [
            fingerprint
            for fingerprint in unfit
            if devices.others_may_load(tx, self.id, self.pool, fingerprint, lease_s=lease_s)
        ]

    def leave(self) -> None:
        """The device has no worker any more. Raises Unavailable, LostLease; the lock is free all
        the same.
        """
        try:
            self.beat("stopped")
        finally:
            self.listener.close()
            self._unlock()

    def _lock_path(self) -> Path:
        folder = self._context.settings.run_dir
        folder.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "-." else "_" for c in self.id)
        return (folder / f"device-{name}.lock").absolute()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(path: Path, device_id: DeviceId) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise Conflict(
            f"device {device_id} is served by another worker (process {holder}): one device, one "
            "worker; stop that one first"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
