"""Checks of models: asked for, and looked at until they have ended."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.deps import ACaller, Caller, CheckInPath, Here, ModelInPath
from api.values import Body, LongText, Name, epoch, epoch_or_none
from batchgen.domain.checks import Check
from batchgen.domain.errors import NotFound
from batchgen.services import model_checks
from batchgen.services.model_checks import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_PROMPT,
    DEFAULT_WAIT_S,
    Asked,
)

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[ACaller])


class NewCheck(Body):
    """What to check a model with. It waits for a free device at most `wait_s`."""

    device: Name | None = None
    prompt: LongText = DEFAULT_PROMPT
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=1, le=4_096)
    wait_s: float = Field(DEFAULT_WAIT_S, ge=1, le=86_400, strict=False)


class CheckObject(BaseModel):
    """A check. `report` is there once it has passed, `reason` once it has failed or expired."""

    id: str
    object: Literal["model.check"] = "model.check"
    model: str
    revision: int
    fingerprint: str
    pool: str
    device: str | None
    state: str
    warnings: list[str]
    holder: str | None
    report: dict[str, Any] | None
    reason: str | None
    created_at: int
    ended_at: int | None

    @classmethod
    def of(cls, check: Check) -> "CheckObject":
        return cls(
            id=check.id,
            model=check.model,
            revision=check.revision,
            fingerprint=check.fingerprint,
            pool=check.pool,
            device=check.device,
            state=check.state,
            warnings=list(check.warnings),
            holder=check.holder,
            report=None if check.report is None else dict(check.report),
            reason=check.reason,
            created_at=epoch(check.created_at),
            ended_at=epoch_or_none(check.ended_at),
        )


@router.post("/{name:path}/checks")
def check_model(name: ModelInPath, body: NewCheck, key: Caller, here: Here) -> CheckObject:
    """Have an idle device load the model and generate once. Settings that cannot work: 400."""
    asked = Asked(
        project=key.project,
        model=name,
        device=body.device,
        prompt=body.prompt,
        max_tokens=body.max_tokens,
        wait_s=body.wait_s,
    )
    return CheckObject.of(model_checks.ask(here.database, here.bells, asked))


@router.get("/{name:path}/checks/{check_id}")
def get_check(name: ModelInPath, check_id: CheckInPath, key: Caller, here: Here) -> CheckObject:
    """A check as it stands."""
    check = model_checks.look(here.database, here.settings, check_id, key.project)
    if check.model != name:
        raise NotFound("no such check of this model", param="check_id")
    return CheckObject.of(check)
