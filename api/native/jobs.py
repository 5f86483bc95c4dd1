"""Jobs: create, list, look, and what can be done to them."""

from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi import Query as InQuery
from pydantic import Field
from sqlalchemy import Connection

from api.context import Context
from api.deps import ACaller, Caller, Here, IdempotencyKey, JobInPath, as_file_id, as_job_id
from api.native.shapes import JobObject
from api.values import Body, ExpiresAfter, JsonObject, Metadata, Name, Page, Query, Text
from batchgen.domain.errors import UnknownOption
from batchgen.domain.jobs import Job, Ordering
from batchgen.domain.requests import Endpoint
from batchgen.domain.states import JobState
from batchgen.services.cancel import cancel, pause, resume
from batchgen.services.retry import retry
from batchgen.services.submit import Submission, submit
from batchgen.services.unserved import warnings_of
from batchgen.storage import jobs

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[ACaller])


class NewJob(Body):
    """A job to submit. `engine` changes settings of the model's engine for this job alone.

    `ordering`: with `prefix` lines that begin alike run next to each other, and long ones early;
    with `input` they run as they come.
    """

    input_file_id: Text
    endpoint: Text = Endpoint.CHAT_COMPLETIONS.value
    model: Name | None = None
    completion_window: Text = "24h"
    metadata: Metadata | None = None
    priority: int = Field(0, ge=-1_000, le=1_000)
    engine: JsonObject = Field(default_factory=dict)
    ordering: Literal["prefix", "input"] = "prefix"
    output_expires_after: ExpiresAfter | None = None


class JobChange(Body):
    """What can be changed in a job that has not ended."""

    priority: int = Field(ge=-1_000, le=1_000)


class Listing(Query):
    """Which jobs. `state` may name several, with commas."""

    after: Text | None = None
    limit: int = Field(20, ge=1, le=100)
    state: Text | None = None
    model: Name | None = None


@router.post("")
def create_job(body: NewJob, key: Caller, here: Here, idempotency_key: IdempotencyKey) -> JobObject:
    """Submit a job."""
    expiry = body.output_expires_after
    asked = Submission(
        project=key.project,
        input_file_id=as_file_id(body.input_file_id, "input_file_id"),
        endpoint=body.endpoint,
        model=body.model,
        overrides=body.engine,
        completion_window=body.completion_window,
        metadata=body.metadata,
        priority=body.priority,
        ordering=Ordering(body.ordering),
        output_expires_after_s=None if expiry is None else expiry.seconds,
        idempotency_key=idempotency_key,
    )
    return _shown(here, submit(here.database, here.bells, here.settings, asked))


@router.get("")
def list_jobs(key: Caller, here: Here, listing: Annotated[Listing, InQuery()]) -> Page[JobObject]:
    """The project's jobs, newest first."""
    states = None if listing.state is None else _states(listing.state)
    after = None if listing.after is None else as_job_id(listing.after, "after")
    with here.database.unit_of_work() as tx:
        found = jobs.page(
            tx,
            key.project,
            limit=listing.limit + 1,
            after=after,
            states=states,
            model=listing.model,
        )
        warnings = warnings_of(tx, found, lease_s=here.settings.lease_s)
    shown = ((job.id, JobObject.of(job, warnings[job.id])) for job in found)
    return Page.of(shown, listing.limit)


@router.get("/{job_id}")
def get_job(job_id: JobInPath, key: Caller, here: Here) -> JobObject:
    """One job, its counts as of now."""
    with here.database.unit_of_work() as tx:
        return _shown_in(tx, here, jobs.get(tx, job_id, project=key.project))


@router.patch("/{job_id}")
def change_job(job_id: JobInPath, body: JobChange, key: Caller, here: Here) -> JobObject:
    """Change the priority. 409 once the job has ended."""
    with here.database.unit_of_work() as tx:
        jobs.set_priority(tx, job_id, key.project, body.priority)
        return _shown_in(tx, here, jobs.get(tx, job_id, project=key.project))


@router.post("/{job_id}/cancel")
def cancel_job(job_id: JobInPath, key: Caller, here: Here) -> JobObject:
    """Cancel: finished lines are kept. 409 once it has completed, failed or expired."""
    return _shown(here, cancel(here.database, here.bells, job_id, key.project))


@router.post("/{job_id}/pause")
def pause_job(job_id: JobInPath, key: Caller, here: Here) -> JobObject:
    """Hand out no more of it; its expiry clock stops."""
    return _shown(here, pause(here.database, job_id, key.project))


@router.post("/{job_id}/resume")
def resume_job(job_id: JobInPath, key: Caller, here: Here) -> JobObject:
    """Go on with a paused job."""
    return _shown(here, resume(here.database, here.bells, job_id, key.project))


@router.post("/{job_id}/retry")
def retry_job(job_id: JobInPath, key: Caller, here: Here) -> JobObject:
    """Run the failed lines of an ended job again; what completed stays."""
    return _shown(here, retry(here.database, here.bells, job_id, key.project))


def _shown(here: Context, job: Job) -> JobObject:
    with here.database.unit_of_work() as tx:
        return _shown_in(tx, here, job)


def _shown_in(tx: Connection, here: Context, job: Job) -> JobObject:
    return JobObject.of(job, warnings_of(tx, [job], lease_s=here.settings.lease_s)[job.id])


def _states(written: str) -> list[JobState]:
    names = [name.strip() for name in written.split(",")]
    known = {state.value for state in JobState}
    for name in names:
        if name not in known:
            raise UnknownOption.named(name[:32], known, where="state")
    return [JobState(name) for name in names]
