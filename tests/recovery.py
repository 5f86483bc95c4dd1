"""What the other processes do once those that died are known to be dead."""

from sqlalchemy import text

from batchgen.domain.clock import SystemClock
from batchgen.domain.ids import JobId
from batchgen.domain.jobs import Job
from batchgen.domain.states import TERMINAL_JOB_STATES, JobState
from batchgen.services import sweep
from tests.house import House
from workers.context import Context
from workers.control import ControlWorker


def bring_to_its_end(house: House, job_id: JobId) -> Job:
    """The job as it ended, once the leases of the dead have run out."""
    with house.database.unit_of_work() as tx:
        past = "now() - interval '1 s'"
        tx.execute(text(f"UPDATE shards SET lease_until = {past} WHERE lease_until IS NOT NULL"))
        tx.execute(text(f"UPDATE jobs SET control_until = {past} WHERE control_until IS NOT NULL"))
    context = Context(house.settings, house.database, house.store, house.bells, SystemClock())
    looks = ControlWorker(context).looks()
    sweep.run_once(house.database, house.store, house.bells)
    for _ in range(3):
        looks["ingest"]()
        if house.job(job_id).state in {JobState.QUEUED, JobState.RUNNING}:
            worker = house.worker()
            worker.serve()
            worker.leave()
        looks["finalize"]()
        job = house.job(job_id)
        if job.state in TERMINAL_JOB_STATES:
            return job
    raise AssertionError(f"the job is {house.job(job_id).state}")
