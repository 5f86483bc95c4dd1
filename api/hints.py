"""Word that a job has changed: one listening thread for all streams of the process."""

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from batchgen.storage.job_events import CHANNEL
from batchgen.storage.listen import Listener

_PATIENCE_S = 1.0


class JobHints:
    """Wakes those who watch a job when the database says that it changed.

    Hints may be lost: whoever watches looks by the clock as well.
    """

    def __init__(self, database_url: str) -> None:
        self._listener = Listener(database_url, [CHANNEL])
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._stopping, self._ending = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="job-hints", daemon=True)

    def start(self) -> None:
        """Listen, and wake watchers in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        """Let the thread end; it does at once."""
        self._stop.set()
        self._ending.close()
        if self._thread.ident is not None:
            self._thread.join(timeout=2 * _PATIENCE_S)
        self._stopping.close()

    @contextmanager
    def watching(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when the job has changed; the watcher clears it."""
        event = asyncio.Event()
        self._watchers.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            others = self._watchers[job_id]
            others.discard(event)
            if not others:
                del self._watchers[job_id]

    def _listen(self) -> None:
        while not self._stop.is_set():
            descriptor = self._listener.fileno()
            if descriptor is None:
                self._stop.wait(_PATIENCE_S)
                continue
            readable, _, _ = select.select(
                [descriptor, self._stopping.fileno()], [], [], _PATIENCE_S
            )
            changed = {job_id for _, job_id in self._listener.drain()} if readable else set()
            if changed and self._loop is not None and not self._stop.is_set():
                self._loop.call_soon_threadsafe(self._wake, changed)
        self._listener.close()

    def _wake(self, changed: set[str]) -> None:
        for job_id in changed:
            for event in self._watchers.get(job_id, ()):
                event.set()
