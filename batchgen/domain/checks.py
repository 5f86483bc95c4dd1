"""A check of a model: load it on a device, generate once, tell what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from batchgen.domain.errors import Conflict
from batchgen.domain.ids import CheckId, DeviceId, LeaseToken, Project


class CheckState(StrEnum):
    """Where a check is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    EXPIRED = "expired"


class CheckEvent(StrEnum):
    """What can happen to a check."""

    CLAIM = "claim"
    LOSE = "lose"
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"


_S, _E = CheckState, CheckEvent
CHECK_TRANSITIONS: Mapping[tuple[CheckState, CheckEvent], CheckState] = {
    (_S.WAITING, _E.CLAIM): _S.RUNNING,
    (_S.WAITING, _E.FAIL): _S.FAILED,
    (_S.WAITING, _E.EXPIRE): _S.EXPIRED,
    (_S.RUNNING, _E.LOSE): _S.WAITING,
    (_S.RUNNING, _E.SUCCEED): _S.PASSED,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
}
ENDED_CHECK_STATES = frozenset(CheckState) - {source for source, _ in CHECK_TRANSITIONS}

# A worker that is lost with a check is no proof against the model; two of them are.
CHECK_ATTEMPTS = 2


def advance_check(state: CheckState, event: CheckEvent) -> CheckState:
    """The state after `event`. Raises Conflict where the table has no such transition."""
    try:
        return CHECK_TRANSITIONS[state, event]
    except KeyError:
        raise Conflict(f"a check that is {state} cannot take the event '{event}'") from None


@dataclass(frozen=True, slots=True)
class Check:
    """A check as it stands.

    `warnings` are what the settings cost though they work. `holder` is the device that runs it, or
    ran it; `report` is there once it has passed, `reason` once it has failed or expired.
    """

    id: CheckId
    project: Project
    model: str
    revision: int
    fingerprint: str
    pool: str
    device: str | None
    state: CheckState
    warnings: tuple[str, ...]
    holder: DeviceId | None
    report: Mapping[str, Any] | None
    reason: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class ClaimedCheck:
    """A check under lease, with all that its holder needs."""

    id: CheckId
    model: str
    engine_spec: Mapping[str, Any]
    fingerprint: str
    prompt: str
    max_tokens: int
    token: LeaseToken
