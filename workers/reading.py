"""From the lines of the shards that a session holds to the requests that the engine gets.

Lines are read ahead of the engine, from the next shards too, so that they can be put in order; a
job that wants its lines as they come is read no further than the engine asks for.
"""

from collections import deque
from collections.abc import Iterable, Set

from batchgen.domain.ids import ShardId
from batchgen.domain.jobs import Ordering
from batchgen.domain.outcomes import Failed
from workers.context import Context
from workers.in_flight import InFlight
from workers.leases import Leases
from workers.ordering import Entry
from workers.prepare import Prepared, failed_record
from workers.resident import Resident
from workers.shard_work import ShardWork
from workers.window import Window

# Lines read in one turn at most, so that results and heartbeats are never late.
_LINES_A_TURN = 128
# And ahead of what the engine asks for: reading takes processor time, which on a CPU device the
# engine wants too.
_AHEAD_A_TURN = 32
# Shards with few lines left to run must not be hoarded to fill the window.
_OPEN_SHARDS = 8
_KV_BLOCK_TOKENS = 32
# What a line takes of memory beside its bytes, those of its parsed form, and its token ids.
_ENTRY_BYTES = 1_000
_PARSED = 3


class Reading:
    """For one session; what is to run again goes first."""

    def __init__(self, context: Context, resident: Resident, leases: Leases) -> None:
        settings, applied = context.settings, resident.applied
        block = None if applied is None else applied.kv_block_tokens
        self._resident = resident
        self._leases = leases
        self._again: deque[InFlight] = deque()
        self._window: Window[InFlight] = Window(
            lines=settings.lookahead_lines,
            n_bytes=settings.lookahead_bytes,
            block_tokens=block or _KV_BLOCK_TOKENS,
        )
        # Lines on which an engine may have died: they are to run alone.
        self.doubtful: list[InFlight] = []

    def read(self, wanted: int) -> bool:
        """Read until so many requests wait. True: it was too much for one turn."""
        for _ in range(_LINES_A_TURN):
            work = None if self.doubtful else self._next_work(wanted)
            if work is None:
                return False
            self._read_line(work)
        return True

    def read_ahead(self) -> None:
        """Read some of the lines that will be wanted later."""
        for _ in range(_AHEAD_A_TURN):
            work = None if self.doubtful else self._work_ahead()
            if work is None:
                return
            self._read_line(work)

    def take(self, most: int) -> list[InFlight]:
        """The next requests, so many at most."""
        out: list[InFlight] = []
        while len(out) < most:
            item = self._again.popleft() if self._again else self._window.take()
            if item is None:
                break
            out.append(item)
        return out

    def again(self, items: Iterable[InFlight]) -> None:
        """These are to run again, before all others."""
        self._again.extendleft(reversed([i for i in items if i.work.claimed.id in self._held()]))

    def withdraw(self, gone: Set[ShardId]) -> None:
        """Nothing of these shards is to run any more."""

        def left(item: InFlight) -> bool:
            return item.work.claimed.id not in gone

        self._again = deque(filter(left, self._again))
        self.doubtful = list(filter(left, self.doubtful))
        self._window.drop(lambda item: not left(item))

    def _held(self) -> Set[ShardId]:
        return self._leases.works.keys()

    def _unread(self) -> ShardWork | None:
        """The most urgent shard that has lines to read; of equals the first one claimed."""
        unread = [work for work in self._leases.works.values() if not work.exhausted]
        return max(unread, key=lambda work: work.claimed.priority, default=None)

    def _next_work(self, wanted: int) -> ShardWork | None:
        """Where the next line comes from, as long as fewer than `wanted` requests wait that are as
        urgent as it.
        """
        work = self._unread()
        held = self._leases.works.values()
        most = max((work.claimed.priority for work in held), default=0)
        read = work is None or work.claimed.priority < most
        if read and len(self._again) + self._window.waiting(most) < wanted:
            # All that is held of the most urgent work has been read; there may be more of it.
            work = self._leases.claim_as_urgent() or work
        waiting = self._window.waiting(None if work is None else work.claimed.priority)
        if len(self._again) + waiting >= wanted:
            return None
        return self._leases.claim() if work is None else work

    def _work_ahead(self) -> ShardWork | None:
        if self._window.full:
            return None
        work = self._unread()
        if work is None and len(self._leases.works) < _OPEN_SHARDS:
            work = self._leases.claim_ahead()
            if work is None:
                self._window.settle()
        if work is None or work.claimed.ordering is Ordering.INPUT:
            return None
        return work

    def _read_line(self, work: ShardWork) -> None:
        preparer = self._resident.preparer
        line = work.next_line()
        if line is None or preparer is None:
            return
        prepared = work.warily(line, lambda: preparer.prepare(work.claimed, line))
        if isinstance(prepared, Failed):
            work.add(failed_record(line, prepared))
            return
        item = InFlight(work, line, prepared)
        if line.index in work.strikes:
            self.doubtful.append(item)
        else:
            self._window.add(_entry(item, prepared))


def _entry(item: InFlight, prepared: Prepared) -> Entry[InFlight]:
    claimed = item.work.claimed
    prompt = prepared.prompt_ids.tobytes()
    return Entry(
        item=item,
        job=claimed.job_id,
        prompt=prompt,
        length=len(prepared.prompt_ids) + (prepared.sampling.max_tokens or 0),
        n_bytes=_PARSED * len(item.line.raw) + 2 * len(prompt) + _ENTRY_BYTES,
        priority=claimed.priority,
        ordered=claimed.ordering is Ordering.PREFIX,
    )
