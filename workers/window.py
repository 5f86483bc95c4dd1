"""The lines that a session has read ahead, and which of them goes to the engine next.

A run of them, in order, is handed out while more are read; these are put in order together with
what is left of the run once they are as many, or once no more come. That is left undone where
somebody would wait too long for it.
"""

from collections import Counter, deque
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
        self._of_priority: Counter[int] = Counter()
        self._taken = 0
        # What `_taken` was when the oldest came that may be in the run, and in the next one.
        self._run_since = self._next_since = 0
        self._last = b""

    def __len__(self) -> int:
        return len(self._run) + len(self._next)

    @property
    def full(self) -> bool:
        """No more is to be read ahead."""
        return len(self) >= self._lines or self._held_bytes >= self._most_bytes

    def waiting(self, priority: int | None = None) -> int:
        """How many wait, of this priority or a higher one where one is given."""
        if priority is None:
            return len(self)
        return sum(n for its, n in self._of_priority.items() if its >= priority)

    def add(self, entry: Entry[T]) -> None:
        """Put another one behind what waits."""
        if not self._next:
            self._next_since = self._taken
        self._next.append(entry)
        self._held_bytes += entry.n_bytes
        self._of_priority[entry.priority] += 1

    def settle(self) -> None:
        """No more come for now: all that waits is put in order together, if it can be."""
        since = self._run_since if self._run else self._next_since
        if self._next and self._taken - since + len(self) <= 2 * self._lines:
            self._begin_run([*self._run, *self._next], since=since)

    def take(self) -> T | None:
        """The next one; None where nothing waits."""
        if not self._run:
            self._begin_run(self._next, since=self._next_since)
        elif self.waiting(self._run[0].priority + 1):
            # What is left of the run waits with the others until what is more urgent has gone.
            self._begin_run([*self._run, *self._next], since=self._run_since)
        elif len(self._next) >= len(self._run):
            self.settle()
        if not self._run:
            return None
        entry = self._run.popleft()
        self._held_bytes -= entry.n_bytes
        self._of_priority[entry.priority] -= 1
        self._taken += 1
        self._last = entry.prompt
        return entry.item

    def drop(self, gone: Callable[[T], bool]) -> None:
        """Forget these."""
        self._run = deque(entry for entry in self._run if not gone(entry.item))
        self._next = [entry for entry in self._next if not gone(entry.item)]
        left = (*self._run, *self._next)
        self._held_bytes = sum(entry.n_bytes for entry in left)
        self._of_priority = Counter(entry.priority for entry in left)

    def _begin_run(self, entries: list[Entry[T]], *, since: int) -> None:
        self._run = deque(self._in_order(entries))
        self._run_since = since
        self._next = []

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
