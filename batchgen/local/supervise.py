"""Keeps the parts of a stack alive: notices a death, waits, starts again, says so."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from batchgen.domain.errors import StackError
from batchgen.local.backoff import Backoff
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.local.valkey import EmbeddedValkey

Report = Callable[[str], None]


class Part(Protocol):
    """A process that is kept alive."""

    name: str
    log_path: Path

    @property
    def pid(self) -> int | None: ...

    @property
    def ended_with(self) -> str: ...

    def start(self) -> None:
        """Start it again. Raises StackError."""
        ...

    def is_alive(self) -> bool: ...

    def is_ready(self) -> bool: ...


class ServerPart:
    """An embedded server as a part."""

    def __init__(self, name: str, server: EmbeddedPostgres | EmbeddedValkey, log_path: Path):
        self.name = name
        self.log_path = log_path
        self._server = server

    @property
    def pid(self) -> int | None:
        return self._server.pid

    @property
    def ended_with(self) -> str:
        return "its process or its socket is gone"

    def start(self) -> None:
        self._server.recover()

    def is_alive(self) -> bool:
        return self._server.is_alive()

    def is_ready(self) -> bool:
        return self._server.is_alive()


@dataclass
class _Watched:
    part: Part
    started_at: float
    backoff: Backoff = field(default_factory=Backoff)
    due_at: float | None = None
    starting: "Future[None] | None" = None
    restarts: int = 0


class Supervisor:
    """Looks after parts; `tick` is called a few times a second and never waits."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        executor: Executor,
        report: Report,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._executor = executor
        self._report = report
        self._monotonic = monotonic
        self._watched = [_Watched(part, started_at=monotonic()) for part in parts]

    def restarts(self) -> dict[str, int]:
        """How often each part was started again."""
        return {watched.part.name: watched.restarts for watched in self._watched}

    def tick(self) -> bool:
        """Look at every part once; says whether anything has changed."""
        changed = False
        for watched in self._watched:
            changed |= self._look_at(watched)
        return changed

    def _look_at(self, watched: _Watched) -> bool:
        part, now = watched.part, self._monotonic()
        if watched.starting is not None:
            return watched.starting.done() and self._note_start(watched, now)
        if watched.due_at is not None:
            if now >= watched.due_at:
                watched.due_at = None
                watched.starting = self._executor.submit(part.start)
            return False
        if part.is_alive():
            return False
        wait_s = watched.backoff.wait_after(now - watched.started_at)
        watched.due_at = now + wait_s
        self._report(
            f"{part.name} died ({part.ended_with}; log: {part.log_path}); "
            f"starting it again in {wait_s:g} s"
        )
        return True

    def _note_start(self, watched: _Watched, now: float) -> bool:
        assert watched.starting is not None  # noqa: S101 (the caller looked)
        error = watched.starting.exception()
        watched.starting = None
        watched.started_at = now
        watched.restarts += 1
        if error is None:
            self._report(f"{watched.part.name} started again (process {watched.part.pid})")
        elif isinstance(error, StackError):
            wait_s = watched.backoff.wait_after(0.0)
            watched.due_at = now + wait_s
            self._report(f"{watched.part.name} did not start: {error}; again in {wait_s:g} s")
        else:
            raise error
        return True
