"""Time as something to ask for, so that tests can move it."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Which start of which machine this is: monotonic times of one boot only can be compared. None
    where the system does not tell.
    """
    with suppress(OSError):
        return _BOOT_ID.read_text().strip() or None
    return None


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; for durations."""
        ...

    def now(self) -> datetime:
        """Wall-clock time in UTC; for records that people read, never for leases."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)
