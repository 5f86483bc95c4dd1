"""A session: one loaded engine kept busy with shards: claim -> feed -> collect -> write down.

The running batch never drains between shards or jobs: as long as the engine has room, the next
lines are read, from the next shard if need be. One thread does it all; the engine computes in its
own process.
"""

import select
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

from batchgen.domain.errors import EngineError, HostDied, HostHung, LostLease, Unavailable
from batchgen.domain.ids import JobId, LeaseToken, ShardId
from batchgen.domain.jobs import ClaimedShard
from batchgen.domain.outcomes import Failed, Generation
from batchgen.domain.states import CLAIMABLE_JOB_STATES
from batchgen.engines.client import EngineClient
from batchgen.engines.protocol import Applied, Finished, Outputs, Progress
from batchgen.engines.suspects import Suspicions
from batchgen.storage import jobs, shards
from batchgen.storage.job_events import CHANNEL
from batchgen.storage.shards import WORK_CHANNEL
from workers.autopsy import Autopsy
from workers.context import Context
from workers.device_record import DeviceRecord
from workers.in_flight import InFlight, Key
from workers.prepare import failed_record
from workers.resident import Resident
from workers.shard_work import ShardWork
from workers.stop import Stop

# Requests waiting inside the host, so that a slow write here never starves the engine.
SPARE = 16
# Lines read in one turn at most, so that results and heartbeats are never late.
_LINES_A_TURN = 128
# With so many finished shards that could not be written down, no other is claimed.
_UNWRITTEN = 4
_TICK_S = 0.25
_LOOK_FOR_WORK_S = 1.0
_DATABASE_REST_S = 0.5


class Session:
    """Serves from a first shard until there is no work for this engine, or until told to stop."""

    def __init__(
        self, context: Context, resident: Resident, record: DeviceRecord, stop: Stop
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._clock = context.clock
        self._resident = resident
        self._record = record
        self._stop = stop
        self._works: dict[ShardId, ShardWork] = {}
        self._live: dict[int, InFlight] = {}
        self._ready: deque[InFlight] = deque()
        self._doubtful: list[InFlight] = []
        self._ids = count(1)
        now = self._clock.monotonic()
        self._began = now
        self._next_heartbeat = now
        self._next_checkpoint = now + self._settings.checkpoint_s
        self._next_look = now
        self._lease_ends = now + self._settings.lease_s
        self._write_after = now
        self._drain_until: float | None = None
        self._doing = "serving"
        self._why: str | None = None
        self._more_to_feed = True
        self._notified = True
        self._suspicions: Suspicions[Key] = Suspicions(
            resident.applied.max_live if resident.applied is not None else 1
        )
        self._autopsy = Autopsy(
            context,
            resident,
            self._suspicions,
            run_one=self._submit_one,
            hear=self._collect,
            withdraw=self._withdraw_one,
            keep_alive=self.keep_alive,
        )

    def run(self, first: ClaimedShard) -> None:
        """Raises EngineError where the engine cannot be loaded again, LostLease where another
        worker has the device; the shards are then given back."""
        try:
            self._hold(first)
            while self._works:
                self._turn()
        finally:
            self._give_back(list(self._works.values()))

    def _turn(self) -> None:
        try:
            if self._doubtful and not self._live:
                doubtful, self._doubtful = self._doubtful, []
                self._run_again(self._autopsy.question(doubtful))
            self._feed()
            self._wait()
            self._collect()
        except (HostDied, HostHung) as death:
            self._survive(death)
        self._listen()
        self._heartbeat_if_due()
        self._write_what_is_due()
        if self._stop.is_set():
            self._drain()
        elif self._recycle_due() and not self._live:
            self._resident.reload("recycled", self.keep_alive)

    # Feeding

    def _feed(self) -> None:
        self._more_to_feed = False
        if self._stop.is_set() or self._recycle_due() or self._doubtful:
            return  # what is live runs to its end first
        client, applied = self._engine(), self._resident.applied
        if applied is None:
            raise EngineError("the engine is not loaded")
        room = self._capacity(applied) - len(self._live)
        batch: list[InFlight] = []
        for _ in range(_LINES_A_TURN):
            if len(batch) >= room or not self._read_one(batch):
                break
        else:
            self._more_to_feed = True
        requests = []
        for item in batch:
            request_id = next(self._ids)
            self._live[request_id] = item
            requests.append(item.prepared.for_engine(request_id))
        self._resident.submitted += len(requests)
        client.submit(requests)

    def _capacity(self, applied: Applied) -> int:
        """How many requests the engine is given at once; a spare queue only while nothing is
        suspected.
        """
        limit = self._suspicions.live_limit
        return limit if limit < applied.max_live else applied.max_live + SPARE

    def _submit_one(self, item: InFlight) -> int:
        client = self._engine()
        request_id = next(self._ids)
        self._live[request_id] = item
        self._resident.submitted += 1
        client.submit([item.prepared.for_engine(request_id)])
        return request_id

    def _withdraw_one(self, request_id: int) -> None:
        if self._live.pop(request_id, None) is not None:
            self._engine().cancel([request_id])

    def _engine(self) -> EngineClient:
        if self._resident.client is None:
            raise EngineError("the engine is not loaded")
        return self._resident.client

    def _read_one(self, batch: list[InFlight]) -> bool:
        """One more line: into the batch, or to its record where it cannot run. False: no line is
        left.
        """
        if self._ready:
            batch.append(self._ready.popleft())
            return True
        preparer = self._resident.preparer
        work = self._readable_work()
        if preparer is None or work is None:
            return False
        line = work.next_line()
        if line is None:
            return True
        prepared = preparer.prepare(work.claimed, line)
        if isinstance(prepared, Failed):
            work.add(failed_record(line, prepared))
        elif line.index in work.strikes:
            self._doubtful.append(InFlight(work, line, prepared))
            return False
        else:
            batch.append(InFlight(work, line, prepared))
        return True

    def _readable_work(self) -> ShardWork | None:
        for work in self._works.values():
            if not work.exhausted:
                return work
        return self._claim_more()

    def _claim_more(self) -> ShardWork | None:
        now = self._clock.monotonic()
        if now < self._next_look or now < self._write_after:
            return None
        if sum(work.complete for work in self._works.values()) >= _UNWRITTEN:
            return None  # the disk is full, say: results must not pile up in memory
        claimed = None
        try:
            with self._context.database.unit_of_work() as tx:
                claimed = shards.claim(
                    tx,
                    pool=self._record.pool,
                    device=self._record.device,
                    holder=self._record.id,
                    lease_s=self._settings.lease_s,
                    loaded=self._resident.fingerprint,
                    loyal=now - self._began < self._settings.engine_switch_s,
                )
            if claimed is None:
                self._next_look = now + _LOOK_FOR_WORK_S
                return None
            return self._hold(claimed)
        except Unavailable:
            if claimed is not None:
                self._release([claimed.token])
            self._rest_database()
            return None

    def _hold(self, claimed: ClaimedShard) -> ShardWork:
        work = ShardWork(self._context.database, self._context.store, claimed)
        self._works[claimed.id] = work
        return work

    def _recycle_due(self) -> bool:
        limit = self._resident.max_requests
        return limit is not None and self._resident.submitted >= limit

    # Collecting

    def _wait(self) -> None:
        if self._more_to_feed:
            return
        engine = self._engine()
        heard = [engine.fileno()]
        if not self._stop.is_set():  # once set it stays readable
            heard.append(self._stop.fileno())
        listener = self._record.listener.fileno()
        if listener is not None:
            heard.append(listener)
        now = self._clock.monotonic()
        checkpoint = max(self._next_checkpoint, self._write_after)
        due = min(self._next_heartbeat, checkpoint, now + _TICK_S)
        writing = [engine] if engine.wants_write else []
        readable, _, _ = select.select(heard, writing, [], max(due - now, 0.0))
        self._notified = listener in readable

    def _collect(self, timeout_s: float = 0.0) -> None:
        for event in self._engine().poll(timeout_s):
            if isinstance(event, Outputs):
                ended = [self._live[f.id].key for f in event.finished if f.id in self._live]
                self._suspicions.finished(ended)
                for finished in event.finished:
                    self._take(finished)
            elif isinstance(event, Progress):
                self._resident.last_stats = event.stats

    def _take(self, finished: Finished) -> None:
        item = self._live.pop(finished.id, None)
        if item is None:
            return  # its shard was given back, or it was cancelled, in the meantime
        self._resident.ran_well()
        preparer = self._resident.preparer
        match finished.result:
            case Generation() as generation if preparer is not None:
                record, usage = preparer.output(item.work.claimed, item.prepared, generation)
                item.work.add(record, usage, self._resident.session_id)
            case Failed() as failed:
                record = failed_record(item.line, failed)
                item.work.add(record, session_id=self._resident.session_id)
            case _:
                self._ready.append(item)

    # Writing down

    def _write_what_is_due(self) -> None:
        now = self._clock.monotonic()
        if now < self._write_after:
            return
        checkpoint = now >= self._next_checkpoint
        if checkpoint:
            self._next_checkpoint = now + self._settings.checkpoint_s
        for work in list(self._works.values()):
            if work.complete or (checkpoint and work.has_fresh):
                self._write(work)

    def _write(self, work: ShardWork) -> None:
        try:
            work.checkpoint()
        except LostLease:
            self._forget(work)
        except Unavailable:
            self._rest_database()
        else:
            if work.complete:
                del self._works[work.claimed.id]
                self._ring_if_over(work.claimed.job_id)

    def _ring_if_over(self, job_id: JobId) -> None:
        try:
            with self._context.database.unit_of_work() as tx:
                over = not shards.is_unfinished(tx, job_id)
        except Unavailable:
            return  # the sweeper sees it
        if over:
            self._context.bells.ring_finalize(job_id)

    # Leases

    def _listen(self) -> None:
        if not self._notified:
            return
        self._notified = False
        held = {work.claimed.job_id for work in self._works.values()}
        for channel, payload in self._record.listener.drain():
            if channel == WORK_CHANNEL:
                self._next_look = self._clock.monotonic()
            elif channel == CHANNEL and payload in held:
                self._next_heartbeat = self._clock.monotonic()

    def _heartbeat_if_due(self) -> None:
        now = self._clock.monotonic()
        if now < self._next_heartbeat and now < self._lease_ends:
            return
        try:
            self._heartbeat(now)
        except Unavailable:
            if now >= self._lease_ends:
                # Others may hold these shards by now: what is not written down is not ours to
                # write.
                for work in list(self._works.values()):
                    self._forget(work)
            self._next_heartbeat = now + _DATABASE_REST_S

    def _heartbeat(self, now: float) -> None:
        tokens = {work.claimed.token: work for work in self._works.values()}
        with self._context.database.unit_of_work() as tx:
            held = shards.renew(tx, tokens, self._settings.lease_s)
            states = jobs.states(tx, {work.claimed.job_id for work in tokens.values()})
            self._record.beat_in(
                tx, self._doing, detail=self._why, session_id=self._resident.session_id
            )
        # The lease is counted from before the question was asked, with a tenth to spare.
        self._lease_ends = now + self._settings.lease_s * 0.9
        self._next_heartbeat = now + self._settings.heartbeat_s
        for token, work in tokens.items():
            if token not in held:
                self._forget(work)
        unwanted = [
            work
            for work in self._works.values()
            if states.get(work.claimed.job_id) not in CLAIMABLE_JOB_STATES
        ]
        self._give_back(unwanted)

    def keep_alive(self) -> None:
        """To be called while this thread waits for something else. Raises Stopped, LostLease."""
        self._stop.raise_if_set()
        self._heartbeat_if_due()

    def _forget(self, work: ShardWork) -> None:
        """The shard is no longer ours: nothing of it is written any more."""
        self._withdraw([work])
        self._works.pop(work.claimed.id, None)

    def _give_back(self, works: Iterable[ShardWork]) -> None:
        """Write down what is finished and release the shards with the rest."""
        given = list(works)
        if not given:
            return
        self._withdraw(given)
        for work in given:
            self._write(work)
        released = [work for work in given if work.claimed.id in self._works]
        for work in released:
            del self._works[work.claimed.id]
        self._release([work.claimed.token for work in released])
        for job_id in {work.claimed.job_id for work in released}:
            self._context.bells.ring_finalize(job_id)

    def _release(self, tokens: list[LeaseToken]) -> None:
        # Where it cannot be done the leases end by themselves.
        with suppress(Unavailable), self._context.database.unit_of_work() as tx:
            shards.release(tx, tokens)

    def _withdraw(self, works: Iterable[ShardWork]) -> None:
        gone = {work.claimed.id for work in works}
        ids = [i for i, item in self._live.items() if item.work.claimed.id in gone]
        for request_id in ids:
            del self._live[request_id]
        self._ready = deque(i for i in self._ready if i.work.claimed.id not in gone)
        self._doubtful = [i for i in self._doubtful if i.work.claimed.id not in gone]
        if ids and self._resident.client is not None:
            self._resident.client.cancel(ids)

    # The end, and crashes

    def _drain(self) -> None:
        now = self._clock.monotonic()
        if self._drain_until is None:
            self._drain_until = now + self._settings.drain_s
        if not self._live or now >= self._drain_until:
            self._give_back(list(self._works.values()))

    def _survive(self, death: HostDied | HostHung) -> None:
        """Start the engine again, find out who killed it, and go on."""
        in_flight, self._live = self._live, {}
        self._say("recovering", str(death))
        self._run_again(self._autopsy.conduct(death, in_flight))
        self._say("serving", None)

    def _say(self, doing: str, why: str | None) -> None:
        """What the device's row says from the next heartbeat on, which is due at once."""
        self._doing, self._why = doing, why
        self._next_heartbeat = self._clock.monotonic()

    def _run_again(self, items: Iterable[InFlight]) -> None:
        held = [item for item in items if item.work.claimed.id in self._works]
        self._ready.extendleft(reversed(held))

    def _rest_database(self) -> None:
        self._write_after = self._clock.monotonic() + _DATABASE_REST_S
