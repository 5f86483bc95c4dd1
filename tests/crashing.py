"""Deeds of the service in a process of their own, which dies at a named point.

The processes are forked from one that has imported everything, so that each costs milliseconds.
"""

import multiprocessing
import signal
from collections.abc import Callable

from batchgen.dispatch import NoBells
from batchgen.domain import failpoints
from batchgen.domain.clock import SystemClock
from batchgen.domain.ids import FileId, JobId
from batchgen.services import cancel, finalize, ingest, retry, submit
from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.house import PROJECT
from workers.context import Context
from workers.device import DeviceWorker

IDEMPOTENCY_KEY = "the same each time"

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


def _context(settings: Settings) -> Context:
    store = ObjectStore.from_url(settings.store)
    return Context(settings, Database(settings.database_url), store, NoBells(), SystemClock())


def _submit(c: Context, file_id: str) -> None:
    asked = submit.Submission(
        project=PROJECT, input_file_id=FileId(file_id), idempotency_key=IDEMPOTENCY_KEY
    )
    submit.submit(c.database, c.bells, c.settings, asked)


def _ingest(c: Context, job_id: str) -> None:
    ingest.run_once(c.database, c.store, c.bells, c.settings, JobId(job_id))


def _work(c: Context, _job_id: str) -> None:
    worker = DeviceWorker(c, "CPU", "default")
    worker.start()
    worker.serve()
    worker.leave()


def _finalize(c: Context, job_id: str) -> None:
    finalize.run_once(c.database, c.store, c.settings, JobId(job_id))


def _cancel(c: Context, job_id: str) -> None:
    cancel.cancel(c.database, c.bells, JobId(job_id), PROJECT)


def _retry(c: Context, job_id: str) -> None:
    retry.retry(c.database, c.bells, JobId(job_id), PROJECT)


_DEEDS: dict[str, Callable[[Context, str], None]] = {
    "submit": _submit,
    "ingest": _ingest,
    "work": _work,
    "finalize": _finalize,
    "cancel": _cancel,
    "retry": _retry,
}


def killed_at(point: str, deed: str, settings: Settings, subject: str) -> bool:
    """Whether the deed, done to this job (or file), reached the point and died there."""
    asked = (point, deed, settings.model_dump(), subject)
    process = _FORKS.Process(target=_do, args=asked)
    process.start()
    process.join(60)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    return code == -signal.SIGKILL


def _do(point: str, deed: str, settings: dict[str, object], subject: str) -> None:
    failpoints.arm(point)
    _DEEDS[deed](_context(Settings.model_validate(settings)), subject)
