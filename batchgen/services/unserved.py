"""What a job waits for in vain, by the workers that are alive now."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import JobId
from batchgen.domain.jobs import Job
from batchgen.domain.states import JobState
from batchgen.storage import fleet, models

# States in which lines wait for a worker. Those of a paused job wait because somebody said so.
_WAITING = frozenset({JobState.VALIDATING, JobState.QUEUED, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class JobWarning:
    """A reason why a job does not get on, and its mend. `code` is a stable word for programs."""

    code: str
    message: str


def warnings_of(
    tx: Connection, jobs: Sequence[Job], *, lease_s: float
) -> dict[JobId, tuple[JobWarning, ...]]:
    """The warnings of each of the jobs; none for those that have ended or are paused.

    A worker that has not been heard of for `lease_s` seconds counts as gone.
    """
    out: dict[JobId, tuple[JobWarning, ...]] = {job.id: () for job in jobs}
    waiting = [job for job in jobs if job.state in _WAITING]
    if not waiting:
        return out
    alive = fleet.alive(tx, lease_s=lease_s)
    for job in waiting:
        place = _place(tx, job)
        if place is not None:
            out[job.id] = _of_place(*place, alive=alive)
    return out


def _place(tx: Connection, job: Job) -> tuple[str, str | None] | None:
    """The pool and device that the job needs; None where its model is not known yet."""
    if job.pool is not None:
        return job.pool, job.device
    if job.model is None:
        return None
    try:
        model = models.current(tx, job.model)
    except NotFound:
        return None  # its validation says so
    return model.pool, model.device


def _of_place(
    pool: str, device: str | None, *, alive: frozenset[tuple[str, str]]
) -> tuple[JobWarning, ...]:
    devices = {served for its_pool, served in alive if its_pool == pool}
    if not devices:
        return (
            JobWarning(
                "no_worker_in_pool",
                f"no worker serves the pool '{pool}', so the job waits: start one with `batchgen "
                f"worker device --device {device or 'DEVICE'} --pool {pool}`",
            ),
        )
    if device is not None and device not in devices:
        return (
            JobWarning(
                "no_worker_of_device",
                f"no worker of the pool '{pool}' serves {device}, which the model is bound to, so "
                f"the job waits (served: {', '.join(sorted(devices))}): start one with `batchgen "
                f"worker device --device {device} --pool {pool}`",
            ),
        )
    return ()
