"""A job's events as server-sent events, from any of them on, until the job has ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from api.context import Context
from api.deps import ACaller, Caller, Here, JobInPath
from api.native.shapes import Progress
from batchgen.domain.errors import InvalidRequest, Unavailable
from batchgen.domain.ids import JobId
from batchgen.domain.jobs import Job, Key
from batchgen.domain.states import TERMINAL_JOB_STATES
from batchgen.services.unserved import JobWarning, warnings_of
from batchgen.storage import job_events, jobs, keys

router = APIRouter(prefix="/v1/jobs/{job_id}/events", tags=["jobs"], dependencies=[ACaller])

_STREAM = "text/event-stream"
_LOOK_S = 1.0
_BREATH_S = 0.05
_PROGRESS_S = 0.5
_HEARTBEAT_S = 15.0
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Look:
    """The job, and what was recorded of it up to then, after the last look.

    `allowed` says whether the key that opened the stream still opens anything.
    """

    job: Job
    warnings: tuple[JobWarning, ...]
    events: list[tuple[int, float, str, dict[str, Any]]]
    allowed: bool

    @property
    def is_last(self) -> bool:
        return self.job.state in TERMINAL_JOB_STATES and len(self.events) < _AT_ONCE


@router.get(
    "",
    response_class=Response,
    responses={
        200: {"description": "Events", "content": {_STREAM: {"schema": {"type": "string"}}}}
    },
)
def get_events(
    job_id: JobInPath,
    key: Caller,
    here: Here,
    last_event_id: str | None = Header(None, alias="Last-Event-ID"),
) -> Response:
    """Recorded events, `progress` whenever counts change, and `end` after the terminal state."""
    seen = _event_id(last_event_id)
    # The first look is taken here, so that a foreign id is a 404 and not a broken stream.
    first = _look(here, job_id, key, seen)
    return StreamingResponse(
        _stream(here, key, first, seen), media_type=_STREAM, headers={"X-Accel-Buffering": "no"}
    )


async def _stream(here: Context, key: Key, look: Look, seen: int) -> AsyncIterator[str]:
    clock = asyncio.get_running_loop().time
    told: Progress | None = None
    told_at = quiet_since = clock()
    with here.hints.watching(look.job.id) as changed:
        while True:
            changed.clear()
            text = "".join(_told(look))
            seen = look.events[-1][0] if look.events else seen
            progress, now = Progress.of(look.job, look.warnings), clock()
            if progress != told and _is_due(progress, told, now - told_at, last=look.is_last):
                text += _event("progress", progress.model_dump())
                told, told_at = progress, now
            if look.is_last:
                yield text + _event("end", {"state": look.job.state})
                return
            if not text and now - quiet_since >= _HEARTBEAT_S:
                text = ": still here\n\n"
            if text:
                yield text
                quiet_since = now
            if len(look.events) < _AT_ONCE:
                await _something(changed)
            look = await _next_look(here, key, look, seen)
            if not look.allowed:
                return


def _is_due(progress: Progress, told: Progress | None, since_s: float, *, last: bool) -> bool:
    return last or told is None or told.state != progress.state or since_s >= _PROGRESS_S


async def _something(changed: asyncio.Event) -> None:
    """Wait until the job has changed, for at most a second, and never less than a breath."""
    await asyncio.sleep(_BREATH_S)
    try:
        await asyncio.wait_for(changed.wait(), _LOOK_S - _BREATH_S)
    except TimeoutError:
        return


async def _next_look(here: Context, key: Key, last: Look, seen: int) -> Look:
    try:
        return await run_sync(partial(_look, here, last.job.id, key, seen))
    except Unavailable:
        # The stream outlives a restart of the database.
        return Look(last.job, last.warnings, [], allowed=True)


def _look(here: Context, job_id: JobId, key: Key, seen: int) -> Look:
    with here.database.unit_of_work() as tx:
        allowed = keys.usable(tx, key.id) is not None
        # The job first: whatever made its state has been recorded by then.
        job = jobs.get(tx, job_id, project=key.project)
        warnings = warnings_of(tx, [job], lease_s=here.settings.lease_s)[job.id]
        events = job_events.after_id(tx, job_id, seen, limit=_AT_ONCE)
    told = [(number, at.timestamp(), name, data) for number, at, name, data in events]
    return Look(job, warnings, told, allowed)


def _told(look: Look) -> Iterator[str]:
    for number, at, name, data in look.events:
        yield _event(name, {"at": at, "data": data}, number)


def _event(name: str, data: Any, number: int | None = None) -> str:
    head = f"event: {name}\n" if number is None else f"event: {name}\nid: {number}\n"
    return f"{head}data: {json.dumps(data)}\n\n"


def _event_id(header: str | None) -> int:
    if header is None:
        return 0
    if not (header.isascii() and header.isdecimal() and len(header) <= 18):
        raise InvalidRequest("Last-Event-ID is not an id of ours", param="Last-Event-ID")
    return int(header)
