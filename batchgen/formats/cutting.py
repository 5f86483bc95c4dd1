"""Cutting request lines into shards: byte ranges with a bounded number of lines and bytes."""

from collections.abc import Iterator
from dataclasses import dataclass

from batchgen.domain.jobs import ShardPlan
from batchgen.settings import Settings

# Of English text in JSON: an estimate for planning, never for limits.
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a file may hold and how it is cut."""

    shard_lines: int = 500
    shard_bytes: int = 8 * 2**20
    max_line_bytes: int = 8 * 2**20
    max_lines: int = 10_000_000
    max_reported_faults: int = 1_000

    @classmethod
    def of(cls, settings: Settings) -> "Limits":
        return cls(
            shard_lines=settings.shard_lines,
            shard_bytes=settings.shard_bytes,
            max_line_bytes=settings.max_line_bytes,
            max_lines=settings.max_lines,
            max_reported_faults=settings.max_reported_faults,
        )


class ShardCutter:
    """Collects request lines into shards within the limits, but of at least one line."""

    def __init__(self, limits: Limits) -> None:
        self._max_lines = limits.shard_lines
        self._max_bytes = limits.shard_bytes
        self._seq = 0
        self._n = 0
        self._start = 0
        self._end = 0
        self._first_line = 0
        self.n_requests = 0

    def add(self, start: int, end: int, number: int) -> ShardPlan | None:
        """A request at bytes [start, end); returns the shard before it where that is complete."""
        done = None
        if self._n and (self._n >= self._max_lines or end - self._start > self._max_bytes):
            done = self._cut(self._end)
        if not self._n:
            self._start, self._first_line = start, number
        self._n += 1
        self._end = end
        self.n_requests += 1
        return done

    def finish(self, n_bytes: int) -> Iterator[ShardPlan]:
        """The last shard; the last line may have had no newline."""
        if self._n:
            yield self._cut(min(self._end, n_bytes))

    def _cut(self, end: int) -> ShardPlan:
        plan = ShardPlan(
            seq=self._seq,
            byte_start=self._start,
            byte_end=end,
            first_line=self._first_line,
            first_index=self.n_requests - self._n,
            n_requests=self._n,
            est_tokens=max(self._n, (end - self._start) // _BYTES_PER_TOKEN),
        )
        self._seq += 1
        self._n = 0
        return plan
