"""The OpenAI objects, field by field."""

from typing import Any, Literal, Self

from pydantic import BaseModel

from api.values import epoch, epoch_or_none
from batchgen.domain.jobs import File, Job, Model
from batchgen.domain.states import OPENAI_STATUS
from batchgen.services.model_fleet import Deed, Step


class FileObject(BaseModel):
    """An uploaded or produced file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, file: File) -> "FileObject":
        return cls(
            id=file.id,
            bytes=file.bytes,
            created_at=epoch(file.created_at),
            expires_at=epoch_or_none(file.expires_at),
            filename=file.filename,
            purpose=file.purpose,
        )


class BatchFault(BaseModel):
    """What is wrong with the input file, and in which physical line."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    """Why a batch failed in validation."""

    object: Literal["list"] = "list"
    data: list[BatchFault]


class RequestCounts(BaseModel):
    """How a batch's request lines stand."""

    total: int
    completed: int
    failed: int


class InputTokensDetails(BaseModel):
    """Of the input tokens, those that a cache held."""

    cached_tokens: int


class OutputTokensDetails(BaseModel):
    """Of the output tokens, those that models spent on thinking."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """Token sums over the completed lines."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class OutputExpiresAfter(BaseModel):
    """When the output files go away, counted from their creation."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int


class BatchObject(BaseModel):
    """A generation job as OpenAI's batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    usage: BatchUsage
    output_expires_after: OutputExpiresAfter | None

    @classmethod
    def of(cls, job: Job) -> "BatchObject":
        faults = [
            BatchFault(code=f.code, line=f.line, message=f.message, param=f.param)
            for f in job.faults
        ]
        seconds = job.output_expires_after_s
        return cls(
            id=job.id,
            endpoint=job.endpoint,
            model=job.model,
            errors=BatchErrors(data=faults) if faults else None,
            input_file_id=job.input_file_id,
            completion_window=job.completion_window,
            status=OPENAI_STATUS[job.state],
            output_file_id=job.output_file_id,
            error_file_id=job.error_file_id,
            created_at=epoch(job.created_at),
            in_progress_at=epoch_or_none(job.in_progress_at),
            expires_at=epoch(job.expires_at),
            finalizing_at=epoch_or_none(job.finalizing_at),
            completed_at=epoch_or_none(job.completed_at),
            failed_at=epoch_or_none(job.failed_at),
            expired_at=epoch_or_none(job.expired_at),
            cancelling_at=epoch_or_none(job.cancelling_at),
            cancelled_at=epoch_or_none(job.cancelled_at),
            request_counts=RequestCounts(
                total=job.counts.total, completed=job.counts.completed, failed=job.counts.failed
            ),
            metadata=None if job.metadata is None else dict(job.metadata),
            usage=BatchUsage(
                input_tokens=job.usage.input_tokens,
                input_tokens_details=InputTokensDetails(cached_tokens=job.usage.cached_tokens),
                output_tokens=job.usage.output_tokens,
                output_tokens_details=OutputTokensDetails(
                    reasoning_tokens=job.usage.reasoning_tokens
                ),
                total_tokens=job.usage.input_tokens + job.usage.output_tokens,
            ),
            output_expires_after=None if seconds is None else OutputExpiresAfter(seconds=seconds),
        )


class ModelObject(BaseModel):
    """A registered model: OpenAI's four fields, and what will run it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["batchgen"] = "batchgen"
    revision: int
    engine: str
    spec: dict[str, Any]
    fingerprint: str
    content_hash: str | None
    draft_content_hash: str | None
    pool: str
    device: str | None

    @classmethod
    def of(cls, model: Model) -> Self:
        return cls(**cls._fields_of(model))

    @classmethod
    def _fields_of(cls, model: Model) -> dict[str, Any]:
        return {
            "id": model.name,
            "created": epoch(model.created_at),
            "revision": model.revision,
            "engine": model.spec["engine"],
            "spec": dict(model.spec),
            "fingerprint": model.fingerprint,
            "content_hash": model.content_hash,
            "draft_content_hash": model.draft_content_hash,
            "pool": model.pool,
            "device": model.device,
        }


class DescribedModel(ModelObject):
    """A model, and what of its files and of the fleet is not as one might think."""

    warnings: list[str]

    @classmethod
    def described(cls, model: Model, warnings: list[str]) -> Self:
        return cls(**cls._fields_of(model), warnings=warnings)


class SettingChange(BaseModel):
    """A setting that differs; null where it is not set."""

    setting: str
    before: Any
    after: Any


class ModelStep(BaseModel):
    """What becomes of one model; `revision` is the one in use."""

    model: str
    deed: Deed
    revision: int | None
    changes: list[SettingChange]
    warnings: list[str]

    @classmethod
    def of(cls, step: Step) -> Self:
        return cls(
            model=step.name,
            deed=step.deed,
            revision=step.revision,
            changes=[
                SettingChange(setting=c.setting, before=c.before, after=c.after)
                for c in step.changes
            ],
            warnings=step.warnings,
        )


class FleetPlan(BaseModel):
    """What changes, or without `applied` what would."""

    object: Literal["fleet_plan"] = "fleet_plan"
    applied: bool
    data: list[ModelStep]


class ModelList(BaseModel):
    """All models in use; OpenAI does not page them."""

    object: Literal["list"] = "list"
    data: list[ModelObject]
