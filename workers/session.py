"""A session: one loaded engine kept busy with shards: claim -> feed -> collect -> write down.

The running batch never drains between shards or jobs: lines are read ahead of the engine, from the
next shards too. One thread does it all; the engine computes in its own process.
"""

import select
from collections.abc import Iterable, Set

from batchgen.domain.errors import EngineError, HostDied, HostHung
from batchgen.domain.ids import ShardId
from batchgen.domain.jobs import ClaimedShard
from batchgen.domain.outcomes import Embedding, Failed, Generation
from batchgen.engines.client import EngineClient
from batchgen.engines.protocol import Applied, Finished, Outputs, Progress
from batchgen.engines.suspects import Suspicions
from workers.autopsy import Autopsy
from workers.context import Context
from workers.device_record import DeviceRecord
from workers.in_flight import InFlight, Key
from workers.leases import Leases
from workers.prepare import failed_record
from workers.reading import Reading
from workers.resident import Resident
from workers.stop import Stop

# Requests waiting inside the host, so that a slow write here never starves the engine.
SPARE = 16
_TICK_S = 0.25


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
        self._leases = Leases(context, resident, record, withdraw=self._withdraw)
        self._live: dict[int, InFlight] = {}
        self._reading = Reading(context, resident, self._leases)
        self._drain_until: float | None = None
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
            self._leases.hold(first)
            while self._leases.works:
                self._turn()
        finally:
            self._leases.give_all_back()

    def _turn(self) -> None:
        try:
            if self._reading.doubtful and not self._live:
                doubtful, self._reading.doubtful = self._reading.doubtful, []
                self._reading.again(self._autopsy.question(doubtful))
            self._feed()
            self._wait()
            self._collect()
        except (HostDied, HostHung) as death:
            self._survive(death)
        if self._notified:
            self._notified = False
            self._leases.listen()
        self._leases.heartbeat_if_due()
        self._leases.write_what_is_due()
        if self._stop.is_set():
            self._drain()
        elif self._recycle_due() and not self._live:
            self._resident.reload("recycled", self.keep_alive)

    # Feeding

    def _feed(self) -> None:
        self._more_to_feed = False
        if self._stop.is_set() or self._recycle_due() or self._reading.doubtful:
            return  # what is live runs to its end first
        applied = self._resident.applied
        if applied is None:
            raise EngineError("the engine is not loaded")
        room = self._capacity(applied) - len(self._live)
        self._more_to_feed = self._reading.read(room)
        self._submit(self._reading.take(room))
        if not self._more_to_feed:
            self._reading.read_ahead()

    def _capacity(self, applied: Applied) -> int:
        """How many requests the engine is given at once; a spare queue only while nothing is
        suspected.
        """
        limit = self._suspicions.live_limit
        return limit if limit < applied.max_live else applied.max_live + SPARE

    def _submit(self, items: Iterable[InFlight]) -> list[int]:
        requests = []
        for item in items:
            request_id = self._resident.next_id()
            self._live[request_id] = item
            requests.append(item.prepared.for_engine(request_id))
        self._resident.submitted += len(requests)
        self._engine().submit(requests)
        return [request.id for request in requests]

    def _submit_one(self, item: InFlight) -> int:
        (request_id,) = self._submit([item])
        return request_id

    def _withdraw_one(self, request_id: int) -> None:
        if self._live.pop(request_id, None) is not None:
            self._engine().cancel([request_id])

    def _engine(self) -> EngineClient:
        if self._resident.client is None:
            raise EngineError("the engine is not loaded")
        return self._resident.client

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
        due = min(self._leases.due, now + _TICK_S)
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
            case (Generation() | Embedding()) as made if preparer is not None:
                record, usage = preparer.output(item.work.claimed, item.prepared, made)
                item.work.add(record, usage, self._resident.session_id)
            case Failed() as failed:
                record = failed_record(item.line, failed, item.prepared.request.endpoint)
                item.work.add(record, session_id=self._resident.session_id)
            case _:
                self._reading.again([item])

    def keep_alive(self) -> None:
        """To be called while this thread waits for something else. Raises Stopped, LostLease."""
        self._stop.raise_if_set()
        self._leases.heartbeat_if_due()

    def _withdraw(self, gone: Set[ShardId]) -> None:
        """Nothing of these shards is run any more."""
        ids = [i for i, item in self._live.items() if item.work.claimed.id in gone]
        for request_id in ids:
            del self._live[request_id]
        self._reading.withdraw(gone)
        if ids and self._resident.client is not None:
            self._resident.client.cancel(ids)

    # The end, and crashes

    def _drain(self) -> None:
        now = self._clock.monotonic()
        if self._drain_until is None:
            self._drain_until = now + self._settings.drain_s
        if not self._live or now >= self._drain_until:
            self._leases.give_all_back()

    def _survive(self, death: HostDied | HostHung) -> None:
        """Start the engine again, find out who killed it, and go on."""
        in_flight, self._live = self._live, {}
        self._leases.say("recovering", str(death))
        self._reading.again(self._autopsy.conduct(death, in_flight))
        self._leases.say("serving", None)
