"""After an engine's death: start it again, find the request that killed it, and let the others live.

The reasoning is in engines/suspects.py; here its questions are put to a real engine.
"""

from collections.abc import Callable, Iterator

from batchgen.domain.errors import HostDied, HostHung
from batchgen.domain.outcomes import Failed
from workers.context import Context
from workers.in_flight import InFlight
from workers.resident import Resident


def convicted(why: str) -> Failed:
    """How a request ends that kills engines."""
    return Failed(500, "engine_crash", f"the engine fails when it runs this request: {why}")


class Autopsy:
    """One death, and what follows from it."""

    def __init__(
        self,
        context: Context,
        resident: Resident,
        ids: Iterator[int],
        keep_alive: Callable[[], None],
    ) -> None:
        self._context = context
        self._resident = resident
        self._ids = ids
        self._keep_alive = keep_alive

    def conduct(self, death: HostDied | HostHung, in_flight: dict[int, InFlight]) -> list[InFlight]:
        self._resident.reload(str(death), self._keep_alive)
        return list(in_flight.values())
