"""One shard under lease: the lines still to run, the records so far, and when it is done."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import structlog

from batchgen.domain.errors import NotFound
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import SessionId
from batchgen.domain.jobs import ClaimedShard, Usage
from batchgen.domain.outcomes import Failed
from batchgen.formats.jsonl import RequestLine, request_lines
from batchgen.formats.openai import error_line
from batchgen.services import records
from batchgen.services.records import Record
from batchgen.storage import segments, shards, suspects
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

log = structlog.get_logger(__name__)

T = TypeVar("T")

_READING = "read after several workers were lost"
_FATAL = Failed(500, "worker_lost", "the worker was lost each time it read this request")


class ShardWork:
    """Starts from what earlier holders wrote down. Every write is fenced and may raise
    LostLease.
    """

    def __init__(self, database: Database, store: ObjectStore, claimed: ClaimedShard) -> None:
        reach(Failpoint.CLAIM_COMMITTED)
        self.claimed = claimed
        self._database = database
        self._store = store
        with database.unit_of_work() as tx:
            earlier = segments.of_shard(tx, claimed.id)
            strikes = suspects.strikes(tx, [claimed.id])
            self._fatal = suspects.struck_for(tx, claimed.id, _READING)
        self.strikes: dict[int, int] = {index: n for (_, index), n in strikes.items()}
        self._records, self._usage = records.read(store, earlier)
        self._sessions = records.sessions(earlier)
        self._fresh: list[Record] = []
        self._fresh_usage = Usage()
        self._fresh_sessions: set[SessionId] = set()
        self._n_tries = 0
        self._unsure: list[str] = []
        self._lines = self._open_lines(self._input())
        self.exhausted = False

    @property
    def complete(self) -> bool:
        """Every line has its record."""
        return len(self._records) == self.claimed.plan.n_requests

    @property
    def has_fresh(self) -> bool:
        """There are records that are not written down yet."""
        return bool(self._fresh)

    def has_record(self, index: int) -> bool:
        return index in self._records

    def next_line(self) -> RequestLine | None:
        """The next line without a record; None when all have been handed out."""
        line = next(self._lines, None)
        self.exhausted = line is None
        return line

    def warily(self, line: RequestLine, read: Callable[[], T]) -> T | Failed:
        """What `read` makes of a line.

        In a suspect shard it is noted before: a line at which this worker dies is known to the
        next one, which ends it unread. Raises Unavailable.
        """
        if line.index in self._fatal:
            return _FATAL
        if not self.claimed.suspect or line.index in self.strikes:
            reach(Failpoint.LINE_READ)
            return read()
        with self._database.unit_of_work() as tx:
            suspects.strike(tx, self.claimed.id, [line.index], _READING)
        reach(Failpoint.LINE_READ)
        made = read()
        with self._database.unit_of_work() as tx:
            suspects.absolve(tx, self.claimed.id, [line.index])
        return made

    def add(
        self, record: Record, usage: Usage | None = None, session_id: SessionId | None = None
    ) -> None:
        """The terminal record of a line, and the session in which it ran; the first one wins."""
        if record.index in self._records:
            return
        self._records[record.index] = record
        self._fresh.append(record)
        if usage is not None:
            self._fresh_usage = records.add(self._fresh_usage, usage)
        if session_id is not None:
            self._fresh_sessions.add(session_id)

    def checkpoint(self) -> None:
        """Write down what is new; finishes the shard when it is complete."""
        if self.complete:
            self._finish()
        elif self._fresh:
            # The key is used for this try only: the commit of an earlier one may have come through
            # although its answer was lost, and its object is then what a row refers to.
            key = self._next_key()
            reach(Failpoint.CHECKPOINT_BEGUN)
            draft = records.write(
                self._store, key, self._fresh, self._fresh_usage, self._fresh_sessions
            )
            reach(Failpoint.CHECKPOINT_WRITTEN)
            unsure, self._unsure = self._unsure, [*self._unsure, key]
            with self._database.unit_of_work() as tx:
                shards.checkpoint(tx, self.claimed, draft, instead_of=unsure)
                reach(Failpoint.CHECKPOINT_UNCOMMITTED)
            reach(Failpoint.CHECKPOINT_COMMITTED)
            self._note_written()

    def _finish(self) -> None:
        reach(Failpoint.FINISH_BEGUN)
        draft = records.write(
            self._store,
            self._next_key(),
            self._records.values(),
            records.add(self._usage, self._fresh_usage),
            self._sessions | self._fresh_sessions,
        )
        reach(Failpoint.FINISH_WRITTEN)
        with self._database.unit_of_work() as tx:
            replaced = shards.finish(tx, self.claimed, draft)
            reach(Failpoint.FINISH_UNCOMMITTED)
        reach(Failpoint.FINISH_COMMITTED)
        self._note_written()
        for key in replaced:
            self._store.delete(key)

    def _next_key(self) -> str:
        claimed, number = self.claimed, self._n_tries
        self._n_tries += 1
        return records.object_key(claimed.job_id, claimed.plan.seq, claimed.token, number)

    def _note_written(self) -> None:
        # Only after the commit: a write that failed is tried again with the same records.
        self._usage = records.add(self._usage, self._fresh_usage)
        self._sessions |= self._fresh_sessions
        self._fresh, self._fresh_usage, self._unsure = [], Usage(), []
        self._fresh_sessions = set()

    def _input(self) -> bytes:
        """The shard's bytes; none where they are lost, and its open lines end as errors."""
        plan = self.claimed.plan
        try:
            return self._store.get_range(self.claimed.input_key, plan.byte_start, plan.byte_end)
        except NotFound as error:
            log.error("input_lost", job=self.claimed.job_id, shard=self.claimed.id)  # noqa: TRY400 - an event, not a bug
            lost = Failed(500, "input_lost", f"the job's input is gone from the store: {error}")
            for index in range(plan.first_index, plan.first_index + plan.n_requests):
                self.add(Record(index, error_line(None, lost)))
            return b""

    def _open_lines(self, data: bytes) -> Iterator[RequestLine]:
        plan = self.claimed.plan
        for line in request_lines(data, first_line=plan.first_line, first_index=plan.first_index):
            if line.index not in self._records:
                yield line
