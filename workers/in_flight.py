"""A request on its way: the shard it belongs to, its line, and what the engine gets."""

from dataclasses import dataclass

from batchgen.formats.jsonl import RequestLine
from workers.prepare import Prepared
from workers.shard_work import ShardWork


@dataclass(frozen=True, slots=True)
class InFlight:
    """One line that is ready for, or with, the engine."""

    work: ShardWork
    line: RequestLine
    prepared: Prepared
