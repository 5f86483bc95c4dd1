"""The life of a job and of a shard: one transition table each; everything else derives from
them.
"""

from collections.abc import Mapping
from enum import StrEnum

from batchgen.domain.errors import Conflict


class JobState(StrEnum):
    """Where a job is in its life."""

    VALIDATING = "validating"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    EXPIRING = "expiring"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class JobEvent(StrEnum):
    """What can happen to a job."""

    REJECTED = "rejected"
    SHARDED = "sharded"
    CLAIMED = "claimed"
    WORKED_OFF = "worked_off"
    PUBLISHED = "published"
    CANCEL = "cancel"
    EXPIRE = "expire"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"


class ShardState(StrEnum):
    """Where a shard is in its life."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"


class ShardEvent(StrEnum):
    """What can happen to a shard."""

    CLAIM = "claim"
    RELEASE = "release"
    LEASE_EXPIRED = "lease_expired"
    FINISH = "finish"
    CUT = "cut"
    RETRY = "retry"


_J = JobState
_JE = JobEvent
JOB_TRANSITIONS: Mapping[tuple[JobState, JobEvent], JobState] = {
    (_J.VALIDATING, _JE.REJECTED): _J.FAILED,
    (_J.VALIDATING, _JE.SHARDED): _J.QUEUED,
    (_J.VALIDATING, _JE.CANCEL): _J.CANCELLING,
    (_J.VALIDATING, _JE.EXPIRE): _J.EXPIRING,
    (_J.QUEUED, _JE.CLAIMED): _J.RUNNING,
    (_J.QUEUED, _JE.PAUSE): _J.PAUSED,
    (_J.QUEUED, _JE.WORKED_OFF): _J.FINALIZING,
    (_J.QUEUED, _JE.CANCEL): _J.CANCELLING,
    (_J.QUEUED, _JE.EXPIRE): _J.EXPIRING,
    (_J.RUNNING, _JE.PAUSE): _J.PAUSED,
    (_J.RUNNING, _JE.WORKED_OFF): _J.FINALIZING,
    (_J.RUNNING, _JE.CANCEL): _J.CANCELLING,
    (_J.RUNNING, _JE.EXPIRE): _J.EXPIRING,
    (_J.PAUSED, _JE.RESUME): _J.QUEUED,
    (_J.PAUSED, _JE.WORKED_OFF): _J.FINALIZING,
    (_J.PAUSED, _JE.CANCEL): _J.CANCELLING,
    (_J.FINALIZING, _JE.PUBLISHED): _J.COMPLETED,
    (_J.CANCELLING, _JE.PUBLISHED): _J.CANCELLED,
    (_J.EXPIRING, _JE.PUBLISHED): _J.EXPIRED,
    (_J.COMPLETED, _JE.RETRY): _J.QUEUED,
    (_J.CANCELLED, _JE.RETRY): _J.QUEUED,
    (_J.EXPIRED, _JE.RETRY): _J.QUEUED,
}

_S = ShardState
_SE = ShardEvent
SHARD_TRANSITIONS: Mapping[tuple[ShardState, ShardEvent], ShardState] = {
    (_S.PENDING, _SE.CLAIM): _S.LEASED,
    (_S.LEASED, _SE.RELEASE): _S.PENDING,
    (_S.LEASED, _SE.LEASE_EXPIRED): _S.PENDING,
    (_S.LEASED, _SE.FINISH): _S.DONE,
    (_S.PENDING, _SE.CUT): _S.DONE,
    (_S.DONE, _SE.RETRY): _S.PENDING,
}


def advance_job(state: JobState, event: JobEvent) -> JobState:
    """The state after `event`. Raises Conflict where the table has no such transition."""
    try:
        return JOB_TRANSITIONS[state, event]
    except KeyError:
        raise Conflict(f"a job that is {state} cannot take the event '{event}'") from None


def advance_shard(state: ShardState, event: ShardEvent) -> ShardState:
    """The state after `event`. Raises Conflict where the table has no such transition."""
    try:
        return SHARD_TRANSITIONS[state, event]
    except KeyError:
        raise Conflict(f"a shard that is {state} cannot take the event '{event}'") from None


def job_states_taking(event: JobEvent) -> frozenset[JobState]:
    """The states in which a job takes `event`."""
    return frozenset(state for state, taken in JOB_TRANSITIONS if taken is event)


# Terminal: left only by an explicit retry of the user.
TERMINAL_JOB_STATES = frozenset(
    state
    for state in JobState
    if all(event is JobEvent.RETRY for source, event in JOB_TRANSITIONS if source is state)
)
CLAIMABLE_JOB_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})
PUBLISHABLE_JOB_STATES = job_states_taking(JobEvent.PUBLISHED)

OPENAI_STATUS: Mapping[JobState, str] = {
    JobState.VALIDATING: "validating",
    JobState.QUEUED: "in_progress",
    JobState.RUNNING: "in_progress",
    JobState.PAUSED: "in_progress",
    JobState.FINALIZING: "finalizing",
    JobState.CANCELLING: "cancelling",
    JobState.EXPIRING: "finalizing",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
}
