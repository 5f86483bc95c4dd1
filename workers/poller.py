"""Look for work by the clock, in a thread: what makes the broker a mere convenience."""

import threading
from collections.abc import Callable

import structlog

from batchgen.domain.errors import LostLease, Unavailable
from workers.stop import Stop

log = structlog.get_logger(__name__)


class Poller:
    """Calls `look` every `every_s` seconds until the stop is set; a lost device ends the
    process.
    """

    def __init__(
        self,
        look: Callable[[], object],
        every_s: float,
        stop: Stop,
        on_lost: Callable[[], None],
        *,
        name: str = "poller",
    ) -> None:
        self._look = look
        self._every_s = every_s
        self._stop = stop
        self._on_lost = on_lost
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
            except LostLease as error:
                log.warning("lost_to_another_worker", reason=str(error))
                self._on_lost()
                return
            except Unavailable as error:
                log.warning("cannot_look_for_work", reason=str(error))
            except Exception:
                # Whatever it was: a worker that no longer looks is a worker lost.
                log.exception("look_failed")
            self._stop.wait(self._every_s)
