"""The native objects, field by field. Times are seconds since 1970."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from api.values import epoch, epoch_or_none
from batchgen.domain.jobs import Device, Job, Key
from batchgen.domain.states import OPENAI_STATUS
from batchgen.services.unserved import JobWarning


class JobCounts(BaseModel):
    """How a job's request lines stand; `open` ones have no terminal record yet."""

    total: int
    completed: int
    failed: int
    open: int

    @classmethod
    def of(cls, job: Job) -> "JobCounts":
        c = job.counts
        return cls(
            total=c.total,
            completed=c.completed,
            failed=c.failed,
            open=max(c.total - c.completed - c.failed, 0),
        )


class JobUsage(BaseModel):
    """Token sums over the completed lines."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int

    @classmethod
    def of(cls, job: Job) -> "JobUsage":
        u = job.usage
        return cls(
            input_tokens=u.input_tokens,
            cached_tokens=u.cached_tokens,
            output_tokens=u.output_tokens,
            reasoning_tokens=u.reasoning_tokens,
        )


class JobFault(BaseModel):
    """What is wrong with the input file, and in which physical line."""

    code: str
    line: int | None
    message: str
    param: str | None


class JobNotice(BaseModel):
    """Why a job does not get on, by the workers that are alive now, and the mend."""

    code: str
    message: str


class JobObject(BaseModel):
    """A job: its own state, and OpenAI's status for it."""

    id: str
    object: Literal["job"] = "job"
    kind: str
    state: str
    status: str
    endpoint: str
    model: str | None
    model_id: str | None
    pool: str | None
    device: str | None
    priority: int
    ordering: str
    counts: JobCounts
    usage: JobUsage
    all_failed: bool
    faults: list[JobFault]
    warnings: list[JobNotice]
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    metadata: dict[str, str] | None
    engine: dict[str, Any]
    engine_fingerprint: str | None
    completion_window: str
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    paused_at: int | None

    @classmethod
    def of(cls, job: Job, warnings: Sequence[JobWarning]) -> "JobObject":
        return cls(
            id=job.id,
            kind=job.kind,
            state=job.state,
            status=OPENAI_STATUS[job.state],
            endpoint=job.endpoint,
            model=job.model,
            model_id=job.model_id,
            pool=job.pool,
            device=job.device,
            priority=job.priority,
            ordering=job.ordering,
            counts=JobCounts.of(job),
            usage=JobUsage.of(job),
            all_failed=job.all_failed,
            faults=[
                JobFault(code=f.code, line=f.line, message=f.message, param=f.param)
                for f in job.faults
            ],
            warnings=_notices(warnings),
            input_file_id=job.input_file_id,
            output_file_id=job.output_file_id,
            error_file_id=job.error_file_id,
            metadata=None if job.metadata is None else dict(job.metadata),
            engine=dict(job.overrides),
            engine_fingerprint=job.engine_fingerprint,
            completion_window=job.completion_window,
            created_at=epoch(job.created_at),
            in_progress_at=epoch_or_none(job.in_progress_at),
            expires_at=epoch(job.expires_at),
            finalizing_at=epoch_or_none(job.finalizing_at),
            completed_at=epoch_or_none(job.completed_at),
            failed_at=epoch_or_none(job.failed_at),
            expired_at=epoch_or_none(job.expired_at),
            cancelling_at=epoch_or_none(job.cancelling_at),
            cancelled_at=epoch_or_none(job.cancelled_at),
            paused_at=epoch_or_none(job.paused_at),
        )


class Progress(BaseModel):
    """How far a job is, as its stream of events tells."""

    state: str
    counts: JobCounts
    usage: JobUsage
    warnings: list[JobNotice]

    @classmethod
    def of(cls, job: Job, warnings: Sequence[JobWarning]) -> "Progress":
        return cls(
            state=job.state,
            counts=JobCounts.of(job),
            usage=JobUsage.of(job),
            warnings=_notices(warnings),
        )


def _notices(warnings: Sequence[JobWarning]) -> list[JobNotice]:
    return [JobNotice(code=warning.code, message=warning.message) for warning in warnings]


class DeviceObject(BaseModel):
    """A device that a worker serves, or served."""

    id: str
    object: Literal["device"] = "device"
    host: str
    device: str
    pool: str
    state: str
    detail: str | None
    session_id: str | None
    started_at: int
    heartbeat_at: int
    heartbeat_age_s: float

    @classmethod
    def of(cls, device: Device, age_s: float) -> "DeviceObject":
        return cls(
            id=device.id,
            host=device.host,
            device=device.device,
            pool=device.pool,
            state=device.state,
            detail=device.detail,
            session_id=device.session_id,
            started_at=epoch(device.started_at),
            heartbeat_at=epoch(device.heartbeat_at),
            heartbeat_age_s=round(age_s, 3),
        )


class DeviceList(BaseModel):
    """All devices."""

    object: Literal["list"] = "list"
    data: list[DeviceObject]


class KeyObject(BaseModel):
    """An API key. `secret` is there once, in the answer that created it."""

    id: str
    object: Literal["key"] = "key"
    name: str
    project: str
    scope: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    secret: str | None = None

    @classmethod
    def of(cls, key: Key, secret: str | None = None) -> "KeyObject":
        return cls(
            id=key.id,
            name=key.name,
            project=key.project,
            scope=key.scope,
            created_at=epoch(key.created_at),
            expires_at=epoch_or_none(key.expires_at),
            revoked_at=epoch_or_none(key.revoked_at),
            last_used_at=epoch_or_none(key.last_used_at),
            secret=secret,
        )


class KeyList(BaseModel):
    """All keys, without their secrets."""

    object: Literal["list"] = "list"
    data: list[KeyObject]
