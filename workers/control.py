"""The control worker's deeds: ingest, finalize, sweep. Each may be asked for at any time, any
number of times.
"""

from collections.abc import Callable

import structlog

from batchgen.domain.errors import Unavailable
from batchgen.domain.ids import JobId
from batchgen.services import finalize, ingest, sweep
from batchgen.storage import control
from workers.context import Context

log = structlog.get_logger(__name__)


class ControlWorker:
    """What the control tasks call. The control lease in the database sees to it that none does
    another's work.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def ingest(self, job_id: JobId) -> None:
        c = self._context
        ingest.run_once(c.database, c.store, c.bells, c.settings, job_id)

    def finalize(self, job_id: JobId) -> None:
        c = self._context
        finalize.run_once(c.database, c.store, c.settings, job_id)

    def sweep(self) -> None:
        sweep.run_once(self._context.database, self._context.store, self._context.bells)

    def look(self) -> None:
        """Sweep, and do what no bell has led to: this makes progress without a broker."""
        _apart(self.sweep)
        with self._context.database.unit_of_work() as tx:
            to_ingest = control.needing_ingest(tx)
            to_finalize = control.needing_publication(tx)
        for job_id in to_ingest:
            _apart(self.ingest, job_id)
        for job_id in to_finalize:
            _apart(self.finalize, job_id)


def _apart(deed: Callable[..., object], *job: JobId) -> None:
    """Do it; what goes wrong with one job holds no other up."""
    try:
        deed(*job)
    except Unavailable as error:
        log.warning("control_put_off", job=next(iter(job), None), reason=str(error))
    except Exception:
        log.exception("control_failed", job=next(iter(job), None))
