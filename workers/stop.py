"""A stop that can be waited for: a flag that a thread sets and a descriptor that select hears."""

import os
import threading


class Stopped(Exception):
    """The worker is to end, and this work has been left as it was."""


class Stop:
    """Set once, from any thread or a signal handler."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._read, self._write = os.pipe()

    def set(self) -> None:
        if not self._event.is_set():
            self._event.set()
            os.write(self._write, b"\0")

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the stop at most so long; True when it has come."""
        return self._event.wait(timeout_s)

    def fileno(self) -> int:
        """For select: readable once the stop is set."""
        return self._read

    def raise_if_set(self) -> None:
        """Raises Stopped."""
        if self._event.is_set():
            raise Stopped
