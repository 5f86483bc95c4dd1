"""Bring a job to its end: cut what was never finished, measure, publish the files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog
from sqlalchemy import Connection

from batchgen.domain.clock import Clock, SystemClock
from batchgen.domain.errors import LostLease, NotFound
from batchgen.domain.ids import FileId, JobId, LeaseToken, ShardId, new_file_id
from batchgen.domain.jobs import Counts, FinalSegment, Job, Section, ShardPlan, Usage
from batchgen.domain.outcomes import Cut, CutReason
from batchgen.domain.states import (
    PUBLISHABLE_JOB_STATES,
    TERMINAL_JOB_STATES,
    JobEvent,
    JobState,
    job_states_taking,
)
from batchgen.formats.jsonl import request_lines
from batchgen.formats.openai import cut_line
from batchgen.formats.validate import custom_id_of
from batchgen.services import measure, records
from batchgen.settings import Settings
from batchgen.storage import control, devices, files, jobs, segments, shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

log = structlog.get_logger(__name__)

_SHARDS_AT_ONCE = 16
# The control lease is renewed when this share of it has passed.
_RENEW_AT = 0.25


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
    with database.unit_of_work() as tx:
        token = control.claim(tx, job_id, settings.lease_s)
    if token is None:
        return None
    try:
        return _Closing(
            database, store, settings.lease_s, job_id, token, clock or SystemClock()
        ).run()
    except LostLease:
        return None
    finally:
        with database.unit_of_work() as tx:
            control.release(tx, job_id, token)


@dataclass(frozen=True, slots=True)
class _Closing:
    """One holder's work on one job, under the control lease `token`."""

    database: Database
    store: ObjectStore
    lease_s: float
    job_id: JobId
    token: LeaseToken
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
        return control.renew(tx, self.job_id, self.token, self.lease_s)

    def _cut_pending(self, reason: CutReason) -> None:
        while True:
            with self.database.unit_of_work() as tx:
                self._hold(tx)
                source = jobs.input_key(tx, self.job_id)
                pending = shards.pending_of(tx, self.job_id, limit=_SHARDS_AT_ONCE)
            if not pending:
                return
            for shard_id, plan in pending:
                self._cut_shard(shard_id, plan, source, Cut(reason))

    def _cut_shard(self, shard_id: ShardId, plan: ShardPlan, source: str, cut: Cut) -> None:
        with self.database.unit_of_work() as tx:
            earlier = segments.of_shard(tx, shard_id)
        found, usage = records.read(self.store, earlier)
        names = self._custom_ids(plan, source)
        for index in range(plan.first_index, plan.first_index + plan.n_requests):
            if index not in found:
                found[index] = records.Record(index, cut_line(names.get(index), cut))
        key = records.object_key(self.job_id, plan.seq, self.token, 0)
        # What the shard has of results keeps its origin: manifest and metrics go by it.
        made_by = records.sessions(earlier)
        draft = records.write(self.store, key, found.values(), usage, made_by)
        try:
            with self.database.unit_of_work() as tx:
                replaced = shards.cut(tx, self.job_id, shard_id, draft)
        except LostLease:
            self.store.delete(key)
            return
        for gone in replaced:
            self.store.delete(gone)

    def _custom_ids(self, plan: ShardPlan, source: str) -> dict[int, str | None]:
        """By the requests' indexes; empty where the input is lost: the job is to end all the
        same.
        """
        try:
            data = self.store.get_range(source, plan.byte_start, plan.byte_end)
        except NotFound as error:
            log.error("input_lost", job=self.job_id, reason=str(error))  # noqa: TRY400 - an event, not a bug
            return {}
        lines = request_lines(data, first_line=plan.first_line, first_index=plan.first_index)
        return {line.index: custom_id_of(line.raw) for line in lines}

    def _publish(self) -> Finalized:
        with self.database.unit_of_work() as tx:
            job = jobs.get(tx, self.job_id)
            final = segments.final_of_job(tx, self.job_id)
            sessions = devices.sessions_of_job(tx, self.job_id)
        measured = measure.job_metrics(self.store, self._keeping(final), sessions)
        counts, usage = _totals(final)
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
