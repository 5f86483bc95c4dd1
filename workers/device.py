"""A device's worker: takes the device, serves whatever there is, keeps the engine warm in
between.
"""

import threading

import structlog

from batchgen.domain.errors import (
    EngineError,
    InvalidRequest,
    LoadFailed,
    LostLease,
    Unavailable,
)
from batchgen.domain.jobs import ClaimedShard
from batchgen.domain.outcomes import Failed
from batchgen.engines.protocol import EngineStats
from batchgen.engines.spec import decode_spec
from batchgen.services import caches
from batchgen.storage import job_events, model_checks, shards
from workers.context import Context
from workers.device_record import DeviceRecord
from workers.model_check import ModelCheck
from workers.prepare import failed_record
from workers.resident import Resident
from workers.session import Session
from workers.shard_work import ShardWork
from workers.stop import Stop, Stopped

log = structlog.get_logger(__name__)

_DATABASE_REST_S = 1.0


class DeviceWorker:
    """`serve` may be called from any thread, at any time, as often as bells ring: one call works,
    the others return at once.
    """

    def __init__(self, context: Context, device: str, pool: str) -> None:
        self._context = context
        self._record = DeviceRecord(context, device, pool)
        self._resident = Resident(context, self._record.id, device)
        self._serving = threading.Lock()
        self._last_work = context.clock.monotonic()
        self.stop = Stop()

    @property
    def engine_pid(self) -> int | None:
        """The engine host's process; None while none is loaded."""
        client = self._resident.client
        return None if client is None else client.pid

    @property
    def engine_stats(self) -> EngineStats | None:
        """The engine's counters as last reported."""
        return self._resident.last_stats

    def start(self) -> None:
        """Take the device. Raises Conflict where another worker serves it, Unavailable."""
        freed = self._record.take()
        log.info("device_taken", device=self._record.id, shards_freed=freed)

    def serve(self) -> bool:
        """Work until there is none. False where another call is at it, or the worker is to stop.

        Raises LostLease where another worker has the device: this one must end. A database that is
        away ends the call; the next one tries again.
        """
        if not self._serving.acquire(blocking=False):
            return False
        try:
            # A check waits until no shard does: it must not hold a job up.
            while not self.stop.is_set() and (self._serve_one_session() or self._check_one()):
                self._last_work = self._context.clock.monotonic()
        except Unavailable as error:
            log.warning("database_unavailable", reason=str(error))
        except Stopped:
            log.info("serving_stopped", device=self._record.id)
        finally:
            self._serving.release()
        return not self.stop.is_set()

    def idle(self) -> None:
        """To be called now and then: says that the worker is there, frees an engine long unused,
        removes from this host's compile cache what is to go.

        Raises LostLease, Unavailable.
        """
        if not self._serving.acquire(blocking=False):
            return
        try:
            unused_s = self._context.clock.monotonic() - self._last_work
            if self._resident.loaded and unused_s > self._context.settings.engine_idle_s:
                self._resident.unload("idle")
            self._record.beat("idle")
            # This host's directory may be out of the control worker's reach.
            caches.remove_marked(self._context.database, self._context.settings)
        finally:
            self._serving.release()

    def leave(self) -> None:
        """End: waits for a session to give its shards back, closes the engine, frees the device."""
        self.stop.set()
        with self._serving:
            self._resident.unload("stopped")
            try:
                self._record.leave()
            except (Unavailable, LostLease) as error:
                log.warning("device_not_signed_off", reason=str(error))

    def _serve_one_session(self) -> bool:
        claimed = self._claim()
        if claimed is None:
            return False
        try:
            failure = self._resident.failure(claimed.engine_fingerprint)
            if failure is not None:
                self._fail_whole(claimed, failure)
                return True
            if self._resident.fingerprint != claimed.engine_fingerprint:
                self._load(claimed)
            Session(self._context, self._resident, self._record, self.stop).run(claimed)
        except EngineError as error:
            log.warning("engine_failed", device=self._record.id, reason=str(error))
            self._resident.unload("failed")
            self._release(claimed)
            self._note(claimed, str(error))
        except BaseException:
            self._release(claimed)
            raise
        return True

    def _check_one(self) -> bool:
        with self._context.database.unit_of_work() as tx:
            model_checks.reap(tx)
            claimed = model_checks.claim(
                tx,
                pool=self._record.pool,
                device=self._record.device,
                holder=self._record.id,
                lease_s=self._context.settings.lease_s,
            )
        if claimed is None:
            return False
        ModelCheck(self._context, self._resident, self._record, self.stop, claimed).run()
        return True

    def _claim(self) -> ClaimedShard | None:
        with self._context.database.unit_of_work() as tx:
            unfit = self._record.left_to_others(tx, self._resident.unfit())
            for loaded in {self._resident.fingerprint: None, None: None}:
                claimed = shards.claim(
                    tx,
                    pool=self._record.pool,
                    device=self._record.device,
                    holder=self._record.id,
                    lease_s=self._context.settings.lease_s,
                    loaded=loaded,
                    unfit=unfit,
                )
                if claimed is not None:
                    return claimed
        return None

    def _load(self, claimed: ClaimedShard) -> None:
        clock, settings = self._context.clock, self._context.settings
        due = clock.monotonic()

        def keep_alive() -> None:
            nonlocal due
            self.stop.raise_if_set()
            if clock.monotonic() < due:
                return
            due = clock.monotonic() + settings.heartbeat_s
            try:
                with self._context.database.unit_of_work() as tx:
                    shards.renew(tx, [claimed.token], settings.lease_s)
                    self._record.beat_in(tx, "loading", detail=claimed.model)
            except Unavailable as error:
                # A load is too dear to end for a moment's loss; the fence stands if it was longer.
                log.warning("lease_not_renewed", shard=claimed.id, reason=str(error))
                due = clock.monotonic() + _DATABASE_REST_S

        keep_alive()
        try:
            spec = decode_spec(dict(claimed.engine_spec))
        except InvalidRequest as error:
            # Made by a newer service, most likely.
            reason = f"this worker cannot read the job's engine: {error}"
            self._resident.note_failure(claimed.engine_fingerprint, reason)
            raise LoadFailed(reason) from error
        self._resident.load(spec, claimed.engine_fingerprint, keep_alive)
        log.info("engine_loaded", device=self._record.id, model=claimed.model)

    def _fail_whole(self, claimed: ClaimedShard, reason: str) -> None:
        """The engine fails to load, here and on whoever else could: the lines end as errors."""
        work = ShardWork(self._context.database, self._context.store, claimed)
        failed = Failed(500, "engine_load_failed", f"the engine cannot be loaded: {reason}")
        while (line := work.next_line()) is not None:
            work.add(failed_record(line, failed))
        try:
            work.checkpoint()
        except LostLease:
            return
        with self._context.database.unit_of_work() as tx:
            over = not shards.is_unfinished(tx, claimed.job_id)
        if over:
            self._context.bells.ring_finalize(claimed.job_id)

    def _release(self, claimed: ClaimedShard) -> None:
        try:
            with self._context.database.unit_of_work() as tx:
                shards.release(tx, [claimed.token])
        except Unavailable:
            return  # the lease ends by itself

    def _note(self, claimed: ClaimedShard, reason: str) -> None:
        try:
            with self._context.database.unit_of_work() as tx:
                job_events.record(tx, claimed.job_id, "engine_failed", {"reason": reason[:2_000]})
        except Unavailable:
            return
