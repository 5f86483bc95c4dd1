"""Whose clock a timing is of, and where it lies on a clock that all machines share.

Timings are monotonic nanoseconds of one boot of one machine. Those of different boots or machines
are never subtracted: they are put on the database's clock first, which said `started_at` when the
session's own clock said `monotonic_ns`.
"""

from collections.abc import Iterable, Sequence

from batchgen.domain.ids import SessionId
from batchgen.domain.jobs import EngineSession

MONOTONIC, DATABASE = "monotonic", "database"


class Clocks:
    """The clocks of one job's sessions."""

    def __init__(self, sessions: Iterable[EngineSession]) -> None:
        known = list(sessions)
        self._single = len({_clock(session) for session in known}) <= 1
        self._offsets = {
            session.id: int(session.started_at.timestamp() * 1e9) - session.monotonic_ns
            for session in known
            if session.monotonic_ns is not None
        }

    @property
    def name(self) -> str:
        """`monotonic` where all ran on one boot of one machine, else `database`: times of different
        sessions are then good to some milliseconds.
        """
        return MONOTONIC if self._single else DATABASE

    def offset(self, named: str | None, made_by: Sequence[SessionId]) -> int | None:
        """What to add to a timing of the session `named` (or, where it names none, of the segment
        `made_by` a single one); None where its clock is not known.
        """
        if self._single:
            return 0
        if named is not None:
            return self._offsets.get(SessionId(named))
        return self._offsets.get(made_by[0]) if len(made_by) == 1 else None


def _clock(session: EngineSession) -> str:
    return session.boot_id or session.device_id.partition("/")[0]
