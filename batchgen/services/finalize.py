"""Bring a job to its end: cut what was never finished, measure, publish the files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from sqlalchemy import Connection

from batchgen.domain.clock import Clock, SystemClock
from batchgen.domain.errors import LostLease
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import FileId, JobId, new_file_id
from batchgen.domain.jobs import Counts, FinalSegment, Job, OpenShard, Section, Usage
from batchgen.domain.outcomes import Cut, CutReason
from batchgen.domain.states import (
    PUBLISHABLE_JOB_STATES,
    TERMINAL_JOB_STATES,
    JobEvent,
    JobState,
    job_states_taking,
)
from batchgen.services import cut, measure, records
from batchgen.services.control_lease import GIVE_UP_AFTER, control_lease
from batchgen.settings import Settings
from batchgen.storage import control, devices, files, jobs, segments, shards
from batchgen.storage.control import ControlLease
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

_SHARDS_AT_ONCE = 16
# The control lease is renewed when this share of it has passed.
_RENEW_AT = 0.25
_GIVEN_UP = "the service failed while it measured this job; its log says why"


@dataclass(frozen=True, slots=True)
class Finalized:
    """`state` is the job's state after; `published` says whether this call ended it."""

    state: JobState
    published: bool


def run_once(
    database: Database,
    store: ObjectStore,
    settings: Settings,
    job_id: JobId,
    *,
    clock: Clock | None = None,
) -> Finalized | None:
    """End the job if its work is over; None where another is at it or nothing is due.

    Killed at any point, it can be run again: shards are cut one transaction each, and the files
    appear in the transaction that makes the job terminal.
    """
    try:
        with control_lease(database, job_id, settings.lease_s) as lease:
            if lease is None:
                return None
            reach(Failpoint.FINALIZE_BEGUN)
            clock = clock or SystemClock()
            return _Closing(database, store, settings.lease_s, job_id, lease, clock).run()
    except LostLease:
        return None


@dataclass(frozen=True, slots=True)
class _Closing:
    """One holder's work on one job, under the control lease `lease`."""

    database: Database
    store: ObjectStore
    lease_s: float
    job_id: JobId
    lease: ControlLease
    clock: Clock

    def run(self) -> Finalized | None:
        with self.database.unit_of_work() as tx:
            state = self._hold(tx)
            worked_off = state in job_states_taking(JobEvent.WORKED_OFF)
            if worked_off and not shards.is_unfinished(tx, self.job_id):
                state = jobs.advance(tx, self.job_id, JobEvent.WORKED_OFF)
        if state not in PUBLISHABLE_JOB_STATES:
            return None
        if state is not JobState.FINALIZING:
            expired = state is JobState.EXPIRING
            self._cut_pending(CutReason.EXPIRED if expired else CutReason.CANCELLED)
            with self.database.unit_of_work() as tx:
                if shards.is_unfinished(tx, self.job_id):
                    # A holder is writing down what it has, or has just given its shard back; it, or
                    # the sweeper, rings again.
                    return Finalized(state, published=False)
        return self._publish()

    def _hold(self, tx: Connection) -> JobState:
        """Keep the lease for the next step."""
        return control.renew(tx, self.lease, self.lease_s)

    def _cut_pending(self, reason: CutReason) -> None:
        while True:
            with self.database.unit_of_work() as tx:
                self._hold(tx)
                source = jobs.input_key(tx, self.job_id)
                pending = shards.pending_of(tx, self.job_id, limit=_SHARDS_AT_ONCE)
            if not pending:
                return
            for shard_id, plan in pending:
                shard = OpenShard(shard_id, self.job_id, plan, source)
                cut.end_open_lines(self.database, self.store, shard, Cut(reason))

    def _publish(self) -> Finalized:
        with self.database.unit_of_work() as tx:
            job = jobs.get(tx, self.job_id)
            final = segments.final_of_job(tx, self.job_id)
            sessions = devices.sessions_of_job(tx, self.job_id)
        counts, usage = _totals(final)
        if self.lease.attempts > GIVE_UP_AFTER:
            # The lines matter more than what they took.
            measured = measure.unmeasured(counts, _GIVEN_UP)
        else:
            measured = measure.job_metrics(self.store, self._keeping(final), sessions)
        with self.database.unit_of_work() as tx:
            self._hold(tx)
            jobs.publish(
                tx,
                self.job_id,
                counts=counts,
                usage=usage,
                output_file_id=_produce(tx, job, final, Section.OUTPUT),
                error_file_id=_produce(tx, job, final, Section.ERROR),
                metrics=measured,
            )
            state = jobs.advance(tx, self.job_id, JobEvent.PUBLISHED)
            reach(Failpoint.PUBLISH_UNCOMMITTED)
        reach(Failpoint.PUBLISH_COMMITTED)
        self._remove_orphans()
        return Finalized(state, published=True)

    def _keeping(self, final: Sequence[FinalSegment]) -> Iterator[FinalSegment]:
        """The segments; the lease is renewed in time while they are gone through."""
        renewed = self.clock.monotonic()
        for segment in final:
            if self.clock.monotonic() - renewed > self.lease_s * _RENEW_AT:
                with self.database.unit_of_work() as tx:
                    self._hold(tx)
                renewed = self.clock.monotonic()
            yield segment

    def _remove_orphans(self) -> None:
        """Objects that late or killed holders left behind: nothing refers to them."""
        # In this order: while the job was at its end nobody held a shard of it, so what had been
        # written before that look and is not referred to then never will be.
        found = list(self.store.list(records.job_prefix(self.job_id)))
        with self.database.unit_of_work() as tx:
            state = jobs.states(tx, [self.job_id])[self.job_id]
            kept = segments.referenced_keys(tx, self.job_id)
        if state in TERMINAL_JOB_STATES:
            for key in found:
                if key not in kept:
                    self.store.delete(key)


def _totals(final: Sequence[FinalSegment]) -> tuple[Counts, Usage]:
    completed = sum(s.n_completed for s in final)
    failed = sum(s.n_failed for s in final)
    usage = Usage()
    for segment in final:
        usage = records.add(usage, segment.usage)
    return Counts(completed + failed, completed, failed), usage


def _produce(
    tx: Connection, job: Job, final: Sequence[FinalSegment], section: Section
) -> FileId | None:
    """The virtual file of one section; None where it would be empty."""
    size = sum(end - start for start, end in (s.span(section) for s in final))
    if size == 0:
        return None
    match section:
        case Section.OUTPUT | Section.ERROR:
            file_id = new_file_id()
        case Section.TIMINGS:
            raise ValueError("timings are no file of their own")
        case _:
            assert_never(section)
    files.insert_produced(
        tx,
        file_id=file_id,
        project=job.project,
        filename=f"{job.id}_{section}.jsonl",
        size=size,
        sha256=records.digest({f"{section}/{s.object_key}": s.sha256 for s in final}),
        job_id=job.id,
        section=section,
        expires_after_s=job.output_expires_after_s,
    )
    return file_id
