"""OpenAI's batches: the generation jobs under the names that its clients know."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Query as InQuery
from pydantic import Field

from api.deps import ACaller, BatchInPath, Caller, Here, IdempotencyKey, as_file_id, as_job_id
from api.openai.shapes import BatchObject
from api.values import Body, ExpiresAfter, Metadata, Page, Query, Text
from batchgen.services.cancel import cancel
from batchgen.services.submit import Submission, submit
from batchgen.storage import jobs

router = APIRouter(prefix="/v1/batches", tags=["batches"], dependencies=[ACaller])


class NewBatch(Body):
    """A batch to create."""

    input_file_id: Text
    endpoint: Text
    completion_window: Text
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class Listing(Query):
    """Which batches."""

    after: Text | None = None
    limit: int = Field(20, ge=1, le=100)


@router.post("")
def create_batch(
    body: NewBatch, key: Caller, here: Here, idempotency_key: IdempotencyKey
) -> BatchObject:
    """Create a batch from an uploaded file."""
    expiry = body.output_expires_after
    asked = Submission(
        project=key.project,
        input_file_id=as_file_id(body.input_file_id, "input_file_id"),
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        metadata=body.metadata,
        output_expires_after_s=None if expiry is None else expiry.seconds,
        idempotency_key=idempotency_key,
    )
    return BatchObject.of(submit(here.database, here.bells, here.settings, asked))


@router.get("")
def list_batches(
    key: Caller, here: Here, listing: Annotated[Listing, InQuery()]
) -> Page[BatchObject]:
    """The project's batches, newest first."""
    after = None if listing.after is None else as_job_id(listing.after, "after")
    with here.database.unit_of_work() as tx:
        found = jobs.page(tx, key.project, limit=listing.limit + 1, after=after)
    return Page.of(((job.id, BatchObject.of(job)) for job in found), listing.limit)


@router.get("/{batch_id}")
def get_batch(batch_id: BatchInPath, key: Caller, here: Here) -> BatchObject:
    """One batch."""
    with here.database.unit_of_work() as tx:
        return BatchObject.of(jobs.get(tx, batch_id, project=key.project))


@router.post("/{batch_id}/cancel")
def cancel_batch(batch_id: BatchInPath, key: Caller, here: Here) -> BatchObject:
    """Cancel: finished lines are kept. 409 once it has completed, failed or expired."""
    return BatchObject.of(cancel(here.database, here.bells, batch_id, key.project))
