"""Cancel, pause and resume: a change of state, and word to those who hold the work."""

from batchgen.dispatch import Bells
from batchgen.domain.errors import Conflict
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import JobId, Project
from batchgen.domain.jobs import Job
from batchgen.domain.states import JobEvent, JobState
from batchgen.storage import jobs
from batchgen.storage.session import Database

# Cancelling these changes nothing, and says so with the job as it is.
_ENDING = frozenset(
    {JobState.CANCELLING, JobState.CANCELLED, JobState.FINALIZING, JobState.EXPIRING}
)


def cancel(database: Database, bells: Bells, job_id: JobId, project: Project) -> Job:
    """Finished lines are kept, the others end as `batch_cancelled`.

    A job that is ending already, or was cancelled before, comes back as it is. Raises NotFound, or
    Conflict where it is completed, failed or expired.
    """
    with database.unit_of_work() as tx:
        job = jobs.get(tx, job_id, project=project)
        if job.state in _ENDING:
            return job
        try:
            jobs.advance(tx, job_id, JobEvent.CANCEL, project=project)
        except Conflict:
            # It may have moved on between the look and the lock.
            job = jobs.get(tx, job_id, project=project)
            if job.state in _ENDING:
                return job
            raise Conflict(
                f"job {job_id} is {job.state}: it cannot be cancelled any more",
                code="job_ended",
            ) from None
        job = jobs.get(tx, job_id, project=project)
        reach(Failpoint.CANCEL_UNCOMMITTED)
    reach(Failpoint.CANCEL_COMMITTED)
    bells.ring_finalize(job_id)
    return job


def pause(database: Database, job_id: JobId, project: Project) -> Job:
    """No more shards are handed out, and the expiry clock stops. Raises NotFound or Conflict."""
    with database.unit_of_work() as tx:
        jobs.advance(tx, job_id, JobEvent.PAUSE, project=project)
        return jobs.get(tx, job_id, project=project)


def resume(database: Database, bells: Bells, job_id: JobId, project: Project) -> Job:
    """Shards are handed out again. Raises NotFound or Conflict."""
    with database.unit_of_work() as tx:
        jobs.advance(tx, job_id, JobEvent.RESUME, project=project)
        job = jobs.get(tx, job_id, project=project)
    if job.pool is not None:
        bells.ring_devices(job.pool, job.device)
    return job
