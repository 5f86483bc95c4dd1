"""Submit a job: one row, validating, and a bell for the control worker."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy.exc import IntegrityError

from batchgen.dispatch import Bells
from batchgen.domain.errors import Conflict, InvalidRequest
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import FileId, JobId, Project, new_job_id
from batchgen.domain.jobs import Job, Ordering
from batchgen.domain.requests import Endpoint
from batchgen.domain.window import window_seconds
from batchgen.services.models import resolve
from batchgen.settings import Settings
from batchgen.storage import files, jobs
from batchgen.storage.session import Database

_METADATA_PAIRS, _METADATA_KEY, _METADATA_VALUE = 16, 64, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job as asked for. `model` None: the lines name it. `overrides` change the model's engine
    settings.
    """

    project: Project
    input_file_id: FileId
    endpoint: str = Endpoint.CHAT_COMPLETIONS
    model: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    completion_window: str = "24h"
    metadata: Mapping[str, str] | None = None
    priority: int = 0
    ordering: Ordering = Ordering.PREFIX
    output_expires_after_s: int | None = None
    idempotency_key: str | None = None


def submit(database: Database, bells: Bells, settings: Settings, asked: Submission) -> Job:
    """The new job, or the earlier one made with the same idempotency key.

    Raises InvalidRequest, NotFound (file, model), or Conflict where the key came with another body.
    """
    _check(asked)
    window_s = window_seconds(asked.completion_window, longest_s=settings.max_completion_window_s)
    request_hash = _hash(asked)
    try:
        job = _insert_or_find(database, asked, window_s, request_hash)
    except IntegrityError:
        # Another call with the same key was faster: its job is there now.
        job = _insert_or_find(database, asked, window_s, request_hash)
    reach(Failpoint.SUBMIT_COMMITTED)
    bells.ring_ingest(job.id)
    return job


def _insert_or_find(database: Database, asked: Submission, window_s: int, request_hash: str) -> Job:
    with database.unit_of_work() as tx:
        if asked.idempotency_key is not None:
            earlier = jobs.by_idempotency_key(tx, asked.project, asked.idempotency_key)
            if earlier is not None:
                job_id, its_hash = earlier
                if its_hash != request_hash:
                    raise Conflict(
                        "this Idempotency-Key was used with another body",
                        code="idempotency_mismatch",
                        param="Idempotency-Key",
                    )
                return jobs.get(tx, job_id)
        source = files.get(tx, asked.input_file_id, project=asked.project, keep=True)
        if source.object_key is None:
            raise InvalidRequest(
                f"'{source.id}' is a job's result: only uploaded files can be submitted; download "
                "and upload it",
                param="input_file_id",
            )
        if asked.model is not None:
            resolve(tx, asked.model, asked.overrides, asked.endpoint)
        job_id = new_job_id()
        jobs.insert(
            tx,
            job_id=job_id,
            project=asked.project,
            endpoint=asked.endpoint,
            model=asked.model,
            overrides=asked.overrides,
            input_file_id=source.id,
            input_key=source.object_key,
            metadata=asked.metadata,
            completion_window=asked.completion_window,
            window_s=window_s,
            priority=asked.priority,
            ordering=asked.ordering,
            output_expires_after_s=asked.output_expires_after_s,
            idempotency_key=asked.idempotency_key,
            request_hash=request_hash,
        )
        reach(Failpoint.SUBMIT_UNCOMMITTED)
        return jobs.get(tx, JobId(job_id))


def _check(asked: Submission) -> None:
    if asked.endpoint not in set(Endpoint):
        raise InvalidRequest(
            f"endpoint '{asked.endpoint}' is not supported; supported: {', '.join(Endpoint)}",
            code="unsupported_endpoint",
            param="endpoint",
        )
    if not -1_000 <= asked.priority <= 1_000:
        raise InvalidRequest("priority must lie between -1000 and 1000", param="priority")
    pairs = asked.metadata or {}
    if len(pairs) > _METADATA_PAIRS or any(
        len(k) > _METADATA_KEY or len(v) > _METADATA_VALUE for k, v in pairs.items()
    ):
        raise InvalidRequest(
            f"metadata holds at most {_METADATA_PAIRS} pairs, keys of {_METADATA_KEY} and values "
            f"of {_METADATA_VALUE} characters",
            param="metadata",
        )
    if any("\0" in part for pair in pairs.items() for part in pair):
        raise InvalidRequest("metadata must not hold the character NUL", param="metadata")


def _hash(asked: Submission) -> str:
    body = asdict(asked)
    del body["idempotency_key"]
    if asked.ordering is Ordering.PREFIX:
        del body["ordering"]  # Keys stay good that came before a job could say it.
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
