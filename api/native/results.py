"""What a job has produced: lines so far or at the end, its metrics, its manifest."""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from api.deps import ACaller, Caller, Here, JobInPath
from api.downloads import JSONL, serve, streamed
from batchgen.domain.jobs import Section
from batchgen.services import results
from batchgen.services.manifest import manifest
from batchgen.storage import jobs

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["results"], dependencies=[ACaller])

_LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "JSONL in the order of the input",
        "content": {JSONL: {"schema": {"type": "string"}}},
    }
}


@router.get("/results", response_class=Response, responses=_LINES)
def get_results(request: Request, job_id: JobInPath, key: Caller, here: Here) -> Response:
    """Completed lines; of a running job those so far, each once."""
    return _section(request, job_id, key, here, Section.OUTPUT)


@router.get("/errors", response_class=Response, responses=_LINES)
def get_errors(request: Request, job_id: JobInPath, key: Caller, here: Here) -> Response:
    """Failed and cut lines; of a running job those so far."""
    return _section(request, job_id, key, here, Section.ERROR)


@router.get("/timings", response_class=Response, responses=_LINES)
def get_timings(request: Request, job_id: JobInPath, key: Caller, here: Here) -> Response:
    """One line of timings for each completed line."""
    return _section(request, job_id, key, here, Section.TIMINGS)


@router.get("/metrics")
def get_metrics(job_id: JobInPath, key: Caller, here: Here) -> dict[str, Any]:
    """What was measured, once the job has ended; empty before."""
    with here.database.unit_of_work() as tx:
        return dict(jobs.get(tx, job_id, project=key.project).metrics or {})


@router.get("/manifest")
def get_manifest(job_id: JobInPath, key: Caller, here: Here) -> dict[str, Any]:
    """What the job really used: model, engine as asked for and as applied, machines."""
    return manifest(here.database, job_id, key.project)


def _section(
    request: Request, job_id: JobInPath, key: Caller, here: Here, section: Section
) -> Response:
    content = results.of_job(here.database, job_id, key.project, section)
    if content is not None:
        return serve(request, here.store, content, filename=f"{job_id}_{section}.jsonl")
    chunks: Iterator[bytes] = results.so_far(here.database, here.store, job_id, section)
    return streamed(chunks)
