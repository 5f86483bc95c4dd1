"""The lines that a session has read ahead, and which of them goes to the engine next.

What is read while one run is handed out is the next run; a run is put in order when it begins. So
every line waits for the rest of the run before its own and for its own, and no longer.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from batchgen.domain.ids import JobId
from workers.ordering import Entry, arranged

T = TypeVar("T")


class Window(Generic[T]):
    """At most `lines` lines and `n_bytes` bytes are read ahead of what the engine asks for.

    With no more than that in it, a line is taken after fewer than twice `lines` others, unless
    some of higher priority come.
    """

    def __init__(self, *, lines: int, n_bytes: int, block_tokens: int) -> None:
        self._lines = lines
        self._most_bytes = n_bytes
        self._block_tokens = block_tokens
        self._run: deque[Entry[T]] = deque()
        self._next: list[Entry[T]] = []
        self._held_bytes = 0
        self._last = b""

    def __len__(self) -> int:
        return len(self._run) + len(self._next)

    @property
    def full(self) -> bool:
        """No more is to be read ahead."""
        return len(self) >= self._lines or self._held_bytes >= self._most_bytes

    def add(self, entry: Entry[T]) -> None:
        if self._run and entry.priority > self._run[0].priority:
            # The run under way waits with the others until what is more urgent has gone.
            self._next[:0] = self._run
            self._run.clear()
        self._next.append(entry)
        self._held_bytes += entry.n_bytes

    def take(self) -> T | None:
        """The next one; None where nothing waits."""
        if not self._run:
            self._run.extend(self._in_order(self._next))
            self._next = []
        if not self._run:
            return None
        entry = self._run.popleft()
        self._held_bytes -= entry.n_bytes
        self._last = entry.prompt
        return entry.item

    def drop(self, gone: Callable[[T], bool]) -> None:
        """Forget these."""
        self._run = deque(entry for entry in self._run if not gone(entry.item))
        self._next = [entry for entry in self._next if not gone(entry.item)]
        self._held_bytes = sum(entry.n_bytes for entry in (*self._run, *self._next))

    def _in_order(self, entries: list[Entry[T]]) -> list[Entry[T]]:
        """The more urgent first, then job by job as they came; a job's lines as it asks for."""
        jobs: dict[tuple[int, JobId], list[Entry[T]]] = {}
        for entry in entries:
            jobs.setdefault((entry.priority, entry.job), []).append(entry)
        out: list[Entry[T]] = []
        for (_priority, _job), lines in sorted(jobs.items(), key=lambda pair: -pair[0][0]):
            if lines[0].ordered:
                after = out[-1].prompt if out else self._last
                out += arranged(lines, after=after, block_tokens=self._block_tokens)
            else:
                out += lines
        return out
