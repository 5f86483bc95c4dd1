"""The control worker's deeds: ingest, finalize, sweep, keep caches. Each may be asked for at any
time, any number of times.
"""

from collections.abc import Callable

import structlog

from batchgen.domain.errors import Unavailable
from batchgen.domain.ids import JobId
from batchgen.services import caches, finalize, ingest, sweep
from batchgen.storage import control
from workers.context import Context

log = structlog.get_logger(__name__)


class ControlWorker:
    """What the control tasks call. The control lease in the database sees to it that none does
    another's work. Where `go_on` says no, long steps end before their time.
    """

    def __init__(self, context: Context, go_on: Callable[[], bool] = lambda: True) -> None:
        self._context = context
        self._go_on = go_on

    def ingest(self, job_id: JobId) -> None:
        c = self._context
        ingest.run_once(c.database, c.store, c.bells, c.settings, job_id, go_on=self._go_on)

    def finalize(self, job_id: JobId) -> None:
        c = self._context
        finalize.run_once(c.database, c.store, c.settings, job_id)

    def sweep(self) -> None:
        sweep.run_once(self._context.database, self._context.store, self._context.bells)

    def keep_caches(self) -> None:
        """Have compile caches removed beyond their size, and remove what this host reaches."""
        caches.keep_budget(self._context.database, self._context.settings)
        caches.remove_marked(self._context.database, self._context.settings)

    def looks(self) -> dict[str, Callable[[], None]]:
        """What is to be looked for again and again, so that jobs get on without a broker.

        Each look by name; they may run at the same time, and none waits for another: a file of many
        gigabytes that is being read holds neither sweeps up nor the ends of other jobs.
        """
        return {
            "sweep": self.sweep,
            "ingest": self._ingest_what_waits,
            "finalize": self._finalize_what_is_over,
            "caches": self.keep_caches,
        }

    def _ingest_what_waits(self) -> None:
        with self._context.database.unit_of_work() as tx:
            waiting = control.needing_ingest(tx)
        for job_id in waiting:
            _apart(self.ingest, job_id)

    def _finalize_what_is_over(self) -> None:
        with self._context.database.unit_of_work() as tx:
            over = control.needing_publication(tx)
        for job_id in over:
            _apart(self.finalize, job_id)


def _apart(deed: Callable[[JobId], object], job_id: JobId) -> None:
    """Do it; what goes wrong with one job holds no other up."""
    try:
        deed(job_id)
    except Unavailable as error:
        log.warning("control_put_off", job=job_id, reason=str(error))
    except Exception:
        log.exception("control_failed", job=job_id)
