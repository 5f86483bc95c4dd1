"""Run the failed lines of a job again; what completed stays."""

from sqlalchemy import Connection

from batchgen.dispatch import Bells
from batchgen.domain.errors import Conflict, NotFound
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import JobId, Project
from batchgen.domain.jobs import Job
from batchgen.domain.states import JobEvent
from batchgen.storage import files, jobs, reopen
from batchgen.storage.session import Database


def retry(database: Database, bells: Bells, job_id: JobId, project: Project) -> Job:
    """The job goes back to the queue with its failed and cut lines open.

    Its output and error files are withdrawn until it has ended again. Raises NotFound, or Conflict
    where it has not ended, failed in validation, has no failed line, or its files are deleted.
    """
    with database.unit_of_work() as tx:
        ended = jobs.get(tx, job_id, project=project)
        # The job's lock comes first: two retries at once are one after the other.
        jobs.advance(tx, job_id, JobEvent.RETRY, project=project)
        _keep_files(tx, ended)
        if reopen.reopen_failed(tx, job_id) == 0:
            raise Conflict(f"job {job_id} has no failed line to run again", code="nothing_to_retry")
        files.mark_produced_deleted(tx, job_id)
        job = jobs.get(tx, job_id, project=project)
        reach(Failpoint.RETRY_UNCOMMITTED)
    reach(Failpoint.RETRY_COMMITTED)
    if job.pool is not None:
        bells.ring_devices(job.pool, job.device)
    return job


def _keep_files(tx: Connection, job: Job) -> None:
    """What a retry builds on must still be there, and stay. Raises Conflict."""
    results = [file_id for file_id in (job.output_file_id, job.error_file_id) if file_id]
    try:
        files.get(tx, job.input_file_id, project=job.project, keep=True)
    except NotFound:
        raise Conflict(
            f"the input file of job {job.id} is deleted: nothing can run again",
            code="input_deleted",
        ) from None
    if results and not files.keep_any(tx, results):
        raise Conflict(
            f"the results of job {job.id} are deleted: submit its input anew",
            code="results_deleted",
        )
