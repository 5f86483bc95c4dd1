"""The shards that a session holds: claimed, kept by heartbeats, written down, given back.

Every write is fenced by a shard's lease token; a lease that is lost means that its shard is
forgotten and nothing of it is written any more.
"""

from collections.abc import Callable, Iterable, Set
from contextlib import suppress

from batchgen.domain.errors import LostLease, Unavailable
from batchgen.domain.ids import JobId, LeaseToken, ShardId
from batchgen.domain.jobs import ClaimedShard
from batchgen.domain.states import CLAIMABLE_JOB_STATES
from batchgen.storage import jobs, shards
from batchgen.storage.job_events import CHANNEL
from batchgen.storage.shards import WORK_CHANNEL
from workers.context import Context
from workers.device_record import DeviceRecord
from workers.resident import Resident
from workers.shard_work import ShardWork

# With so many finished shards that could not be written down, no other is claimed.
_UNWRITTEN = 4
_LOOK_FOR_WORK_S = 1.0
_DATABASE_REST_S = 0.5


class Leases:
    """For one session. `withdraw` is told which shards leave it: nothing of them is to run on."""

    def __init__(
        self,
        context: Context,
        resident: Resident,
        record: DeviceRecord,
        *,
        withdraw: Callable[[Set[ShardId]], None],
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._clock = context.clock
        self._resident = resident
        self._record = record
        self._withdraw = withdraw
        self.works: dict[ShardId, ShardWork] = {}
        now = self._clock.monotonic()
        self._began = now
        self._next_heartbeat = now
        self._next_checkpoint = now + self._settings.checkpoint_s
        self._next_look = self._next_look_ahead = self._next_look_above = now
        self._lease_ends = now + self._settings.lease_s
        self._write_after = now
        self._doing = "serving"
        self._why: str | None = None

    @property
    def due(self) -> float:
        """When there is something to do here next, by the monotonic clock."""
        return min(self._next_heartbeat, max(self._next_checkpoint, self._write_after))

    def hold(self, claimed: ClaimedShard) -> ShardWork:
        """Begin with a shard under lease."""
        work = ShardWork(self._context.database, self._context.store, claimed)
        self.works[claimed.id] = work
        return work

    def claim(self) -> ShardWork | None:
        """Another shard for the loaded engine; None where there is none, or it is no time to
        look.
        """
        now = self._clock.monotonic()
        if now < self._next_look or not self._may_claim(now):
            return None
        work = self._claim(now)
        if work is None:
            self._next_look = now + _LOOK_FOR_WORK_S
        return work

    def claim_ahead(self) -> ShardWork | None:
        """The same before it is needed, where other devices need not go short of it."""
        now = self._clock.monotonic()
        if now < self._next_look_ahead or not self._may_claim(now):
            return None
        work = self._claim(now, ahead=len(self.works))
        if work is None:
            self._next_look_ahead = now + _LOOK_FOR_WORK_S
        return work

    def claim_as_urgent(self) -> ShardWork | None:
        """Another shard of the most urgent work, where less urgent work is held, too."""
        now = self._clock.monotonic()
        held = sorted({work.claimed.priority for work in self.works.values()})
        if len(held) < 2 or now < self._next_look_above or not self._may_claim(now):
            return None
        work = self._claim(now, above=held[-2])
        if work is None:
            self._next_look_above = now + _LOOK_FOR_WORK_S
        return work

    def listen(self) -> None:
        """Take the database's notifications; to be called when there are some."""
        now = self._clock.monotonic()
        held = {work.claimed.job_id for work in self.works.values()}
        heard = self._record.listener.drain()
        if any(channel == CHANNEL and payload in held for channel, payload in heard):
            self._next_heartbeat = now
        if any(channel == WORK_CHANNEL for channel, _ in heard):
            self._next_look = self._next_look_ahead = self._next_look_above = now
            if self.works and self._may_claim(now):
                # Lines that were read ahead must not keep more urgent work waiting.
                self._claim(now, above=max(w.claimed.priority for w in self.works.values()))

    def say(self, doing: str, why: str | None) -> None:
        """What the device's row says from the next heartbeat on, which is due at once."""
        self._doing, self._why = doing, why
        self._next_heartbeat = self._clock.monotonic()

    def heartbeat_if_due(self) -> None:
        """Raises LostLease where another worker has the device."""
        now = self._clock.monotonic()
        if now < self._next_heartbeat and now < self._lease_ends:
            return
        try:
            self._heartbeat(now)
        except Unavailable:
            if now >= self._lease_ends:
                # Others may hold these shards by now: what is not written down is not ours to
                # write.
                for work in list(self.works.values()):
                    self._forget(work)
            self._next_heartbeat = now + _DATABASE_REST_S

    def write_what_is_due(self) -> None:
        """Whole shards at once, parts of them now and then. Where a server is away, each try may
        take its whole patience: one is enough before the next heartbeat.
        """
        now = self._clock.monotonic()
        if now < self._write_after:
            return
        checkpoint = now >= self._next_checkpoint
        if checkpoint:
            self._next_checkpoint = now + self._settings.checkpoint_s
        for work in list(self.works.values()):
            if work.complete or (checkpoint and work.has_fresh):
                self._write(work)
                if self._write_after > now:
                    # Should it be this one only, the others come first the next time.
                    self.works[work.claimed.id] = self.works.pop(work.claimed.id)
                    return

    def give_all_back(self) -> None:
        self._give_back(self.works.values())

    def _may_claim(self, now: float) -> bool:
        """The database is not left alone, results do not pile up (the disk is full, say), and no
        shard goes with a suspect one, should that take this worker down.
        """
        if any(work.claimed.suspect for work in self.works.values()):
            return False
        unwritten = sum(work.complete for work in self.works.values())
        return now >= self._write_after and unwritten < _UNWRITTEN

    def _claim(self, now: float, *, ahead: int = 0, above: int | None = None) -> ShardWork | None:
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
                    ahead=ahead,
                    above=above,
                    beside_others=bool(self.works),
                )
            return None if claimed is None else self.hold(claimed)
        except Unavailable:
            if claimed is not None:
                self._release([claimed.token])
            self._rest_database()
            return None

    def _heartbeat(self, now: float) -> None:
        tokens = {work.claimed.token: work for work in self.works.values()}
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
        self._give_back(
            work
            for work in self.works.values()
            if states.get(work.claimed.job_id) not in CLAIMABLE_JOB_STATES
        )

    def _write(self, work: ShardWork) -> None:
        try:
            work.checkpoint()
        except LostLease:
            self._forget(work)
        except Unavailable:
            self._rest_database()
        else:
            if work.complete:
                del self.works[work.claimed.id]
                self._ring_if_over(work.claimed.job_id)

    def _ring_if_over(self, job_id: JobId) -> None:
        try:
            with self._context.database.unit_of_work() as tx:
                over = not shards.is_unfinished(tx, job_id)
        except Unavailable:
            return  # the sweeper sees it
        if over:
            self._context.bells.ring_finalize(job_id)

    def _forget(self, work: ShardWork) -> None:
        """The shard is no longer ours: nothing of it is written any more."""
        self._withdraw({work.claimed.id})
        self.works.pop(work.claimed.id, None)

    def _give_back(self, works: Iterable[ShardWork]) -> None:
        """Write down what is finished and release the shards with the rest."""
        given = list(works)
        if not given:
            return
        self._withdraw({work.claimed.id for work in given})
        for work in given:
            self._write(work)
        released = [work for work in given if work.claimed.id in self.works]
        for work in released:
            del self.works[work.claimed.id]
        self._release([work.claimed.token for work in released])
        for job_id in {work.claimed.job_id for work in released}:
            self._context.bells.ring_finalize(job_id)

    def _release(self, tokens: list[LeaseToken]) -> None:
        # Where it cannot be done the leases end by themselves.
        with suppress(Unavailable), self._context.database.unit_of_work() as tx:
            shards.release(tx, tokens)

    def _rest_database(self) -> None:
        self._write_after = self._clock.monotonic() + _DATABASE_REST_S
