"""The children of a stack as one: started, waited for and ended together."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from batchgen.domain.errors import StackError
from batchgen.local import logs
from batchgen.local.child import ChildProcess
from batchgen.local.supervise import Report, Supervisor

# With Valkey's 2 s and Postgres' 3 s at their slowest this keeps a stop within 10 s.
_PATIENCE_S = 4.5
_DEATHS_BEFORE_READY = 3
_ASK_EVERY_S = 0.05


class ChildGroup:
    """`await_all` waits for futures and raises where the stack is asked to stop meanwhile."""

    def __init__(
        self,
        children: Sequence[ChildProcess],
        *,
        report: Report,
        await_all: "Callable[[Sequence[Future[Any]]], None]",
        in_a_hurry: Callable[[], bool],
    ):
        self.children = children
        self._report = report
        self._await_all = await_all
        self._in_a_hurry = in_a_hurry

    def start(self) -> None:
        """Start all, each with a new log. Raises StackError."""
        for child in self.children:
            logs.rotate(child.log_path)
            child.start()

    def await_ready(self, supervisor: Supervisor, executor: Executor, timeout_s: float) -> None:
        """Wait until each has said that it is ready; one that dies is started again a few times.

        Raises StackError with the end of its log for one that does not come up.
        """
        deadline = time.monotonic() + timeout_s
        waiting = list(self.children)
        while True:
            # Asking may take long where a process hangs, so it is not done in this thread.
            answers = {child.name: executor.submit(child.is_ready) for child in waiting}
            self._await_all(list(answers.values()))
            waiting = [child for child in waiting if not answers[child.name].result()]
            if not waiting:
                return
            supervisor.tick()
            restarts = supervisor.restarts()
            for child in waiting:
                if restarts[child.name] >= _DEATHS_BEFORE_READY or time.monotonic() > deadline:
                    raise StackError(
                        f"{child.name} does not come up; its log {child.log_path} ends "
                        f"with:\n{logs.tail(child.log_path)}"
                    )
            time.sleep(_ASK_EVERY_S)

    def end(self) -> None:
        """Ask all to end at once and wait for them together; kill those that do not."""
        for child in self.children:
            child.ask_to_end()
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and not self._in_a_hurry():
            if not any(child.is_alive() for child in self.children):
                break
            time.sleep(0.02)
        for child in self.children:
            if child.is_alive():
                self._report(f"{child.name} does not end: killed")
            child.end(0.0)
