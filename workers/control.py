"""The control worker's deeds: ingest, finalize, sweep. Each may be asked for at any time, any
number of times.
"""

from batchgen.domain.ids import JobId
from batchgen.services import finalize, ingest, sweep
from batchgen.storage import control
from workers.context import Context


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
        self.sweep()
        with self._context.database.unit_of_work() as tx:
            to_ingest = control.needing_ingest(tx)
            to_finalize = control.needing_publication(tx)
        for job_id in to_ingest:
            self.ingest(job_id)
        for job_id in to_finalize:
            self.finalize(job_id)
