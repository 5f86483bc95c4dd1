"""What the supervisor does about a death, on a clock of the test's own."""

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from batchgen.domain.errors import StackError
from batchgen.local.backoff import Backoff
from batchgen.local.supervise import Supervisor


class ScriptedPart:
    """A part that dies on command and starts as its script says: None or an error, in turn."""

    name = "part"
    log_path = Path("part.log")
    pid = 1
    ended_with = "exit code 1"

    def __init__(self, *script: Exception | None):
        self.script = list(script)
        self.alive = True

    def start(self) -> None:
        outcome = self.script.pop(0) if self.script else None
        if outcome is not None:
            raise outcome
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive

    def is_ready(self) -> bool:
        return self.alive


class AtOnce(Executor):
    """Runs in the caller's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except StackError as error:
            future.set_exception(error)
        return future


class Watch:
    """A supervisor of one part, and the time."""

    def __init__(self, part: ScriptedPart):
        self.now = 0.0
        self.said: list[str] = []
        self.supervisor = Supervisor(
            [part], executor=AtOnce(), report=self.said.append, monotonic=lambda: self.now
        )

    def tick_at(self, now: float) -> bool:
        self.now = now
        changed = self.supervisor.tick()
        return self.supervisor.tick() or changed


def test_a_living_part_is_left_alone() -> None:
    watch = Watch(ScriptedPart())
    assert not watch.tick_at(1.0)
    assert watch.said == []


def test_a_dead_part_is_started_again_after_the_wait_and_not_before() -> None:
    part = ScriptedPart()
    watch = Watch(part)
    part.alive = False
    watch.tick_at(10.0)
    watch.tick_at(10.4)
    assert not part.alive
    watch.tick_at(10.6)
    assert part.alive
    assert watch.supervisor.restarts() == {"part": 1}
    assert watch.said[0].startswith("part died (exit code 1; log: part.log)")
    assert watch.said[1].startswith("part started again")


def test_a_start_that_fails_is_tried_again_later() -> None:
    part = ScriptedPart(StackError("no room"))
    watch = Watch(part)
    part.alive = False
    for now in (1.0, 1.6, 3.0):
        watch.tick_at(now)
    assert part.alive
    assert "part did not start: no room; again in 1 s" in watch.said


def test_waits_double_up_to_a_limit_and_a_calm_life_resets_them() -> None:
    backoff = Backoff(first_s=1.0, longest_s=5.0, calm_s=60.0)
    assert [backoff.wait_after(0.1) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.wait_after(61.0) == 1.0
