"""A request on its way: the shard it belongs to, its line, and what the engine gets."""

from dataclasses import dataclass

from batchgen.domain.ids import ShardId
from batchgen.formats.jsonl import RequestLine
from workers.prepare import Prepared
from workers.shard_work import ShardWork

# Which line it is, whatever host or worker runs it.
Key = tuple[ShardId, int]


@dataclass(frozen=True, slots=True)
class InFlight:
    """One line that is ready for, or with, the engine."""

    work: ShardWork
    line: RequestLine
    prepared: Prepared

    @property
    def key(self) -> Key:
        return self.work.claimed.id, self.line.index
