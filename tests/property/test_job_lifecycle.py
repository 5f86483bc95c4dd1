"""Any order of claims, crashes, cancels, pauses, expiries, retries: no line is lost or doubled."""

import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from batchgen.dispatch import NoBells
from batchgen.domain.errors import Conflict, LostLease
from batchgen.domain.ids import JobId, LeaseToken, Project, new_file_id
from batchgen.domain.jobs import ClaimedShard, ShardPlan, Usage
from batchgen.domain.outcomes import Failed
from batchgen.domain.states import TERMINAL_JOB_STATES, JobEvent, JobState
from batchgen.formats.openai import error_line
from batchgen.services import cancel, finalize, models, records, retry, submit
from batchgen.settings import Settings
from batchgen.storage import files, jobs, segments, shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

PROJECT = Project("default")
ENDPOINT = "/v1/chat/completions"
BELLS = NoBells()


def line_of(custom_id: str) -> bytes:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}
    line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(line).encode() + b"\n"


_DONE_AND_FINAL_DIFFER = """
    SELECT count(*) FROM shards s LEFT JOIN segments g ON g.shard_id = s.id
    WHERE (s.state = 'done' AND NOT coalesce(g.final, false))
       OR (s.state <> 'done' AND coalesce(g.final, false))
"""


@dataclass
class Held:
    """A shard that some worker holds, or believes that it holds."""

    shard: ClaimedShard
    done: set[int] = field(default_factory=set)
    writes: int = 0


class Lifecycle(RuleBasedStateMachine):
    held = Bundle("held")
    job_ids = Bundle("job_ids")

    def __init__(self, database: Database, store: ObjectStore, options: Settings) -> None:
        super().__init__()
        self.database = database
        self.store = store
        self.options = options
        self.inputs: dict[JobId, list[str]] = {}
        self.terminal: dict[JobId, JobState] = {}
        self.tokens: set[LeaseToken] = set()
        # Every completed line that was ever written down, as it was then.
        self.completed: dict[JobId, dict[int, bytes]] = {}
        # Objects never change.
        self.bodies: dict[str, bytes] = {}
        self.lives = 0
        self.stamp = count(1)

    @initialize()
    def start_empty(self) -> None:
        with self.database.unit_of_work() as tx:
            tx.execute(text("TRUNCATE jobs, files, models, keys CASCADE"))
        models.register(self.database, self.options, name="sim", spec={"engine": "simulated"})

    @rule(target=job_ids, sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def submit_a_job(self, sizes: list[int]) -> JobId:
        names = [f"r{i}" for i in range(sum(sizes))]
        data = b"".join(line_of(name) for name in names)
        file_id = new_file_id()
        self.store.put(f"uploads/{file_id}", data)
        with self.database.unit_of_work() as tx:
            files.insert_uploaded(
                tx,
                file_id=file_id,
                project=PROJECT,
                purpose="batch",
                filename="in.jsonl",
                size=len(data),
                sha256="",
                object_key=f"uploads/{file_id}",
            )
        job = submit.submit(
            self.database,
            BELLS,
            self.options,
            submit.Submission(project=PROJECT, input_file_id=file_id, model="sim"),
        )
        self._shard(job.id, names, sizes)
        self.inputs[job.id] = names
        self.completed[job.id] = {}
        return job.id

    @rule(
        target=job_ids,
        sizes=st.lists(st.integers(2, 4), min_size=1, max_size=3),
        share=st.floats(0.1, 1.0),
        end=st.sampled_from([JobEvent.CANCEL, JobEvent.EXPIRE, None]),
        failing=st.sets(st.integers(0, 2), min_size=1),
    )
    def live_a_whole_life(
        self, sizes: list[int], share: float, end: JobEvent | None, failing: set[int]
    ) -> JobId:
        """Chance alone seldom leads through loss, end and retry with something at stake in each: a
        worker is lost that has written some of a shard down, the job ends, with lines of both kinds
        in a shard, and its failed lines run again.
        """
        job_id = self.submit_a_job(sizes)
        self._put_first(job_id)
        lost = self.claim("lost")
        assert isinstance(lost, Held)
        assert lost.shard.job_id == job_id
        self.write_down_some(lost, share, fail=False)
        self.nothing_is_lost_doubled_or_undone()
        self.all_leases_run_out()
        if end is None:
            self.work_all_off(job_id, failing)
        else:
            self.move(job_id, end)
            self.finalize(job_id)
        assert self._state(job_id) in TERMINAL_JOB_STATES
        self.nothing_is_lost_doubled_or_undone()
        with self.database.unit_of_work() as tx:
            failed = jobs.get(tx, job_id).counts.failed
        self.retry(job_id)
        if failed:
            self.nothing_is_lost_doubled_or_undone()
            self.work_all_off(job_id, set())
            assert self._state(job_id) is JobState.COMPLETED
        return job_id

    def _put_first(self, job_id: JobId) -> None:
        self.lives += 1
        with self.database.unit_of_work() as tx:
            jobs.set_priority(tx, job_id, PROJECT, self.lives)

    def _shard(self, job_id: JobId, names: list[str], sizes: list[int]) -> None:
        plans, at, first = [], 0, 0
        for seq, size in enumerate(sizes):
            length = sum(len(line_of(name)) for name in names[first : first + size])
            plans.append(ShardPlan(seq, at, at + length, first + 1, first, size, 10))
            at, first = at + length, first + size
        with self.database.unit_of_work() as tx:
            found = models.resolve(tx, "sim", {})
            jobs.pin(
                tx,
                job_id,
                model="sim",
                model_id=found.model.id,
                spec=found.model.spec,
                fingerprint=found.fingerprint,
                pool="default",
                device=None,
                n_total=len(names),
            )
            shards.insert(tx, job_id, plans)
            jobs.advance(tx, job_id, JobEvent.SHARDED)

    @rule(target=held, worker=st.sampled_from(["a", "b"]))
    def claim(self, worker: str):  # type: ignore[no-untyped-def]
        with self.database.unit_of_work() as tx:
            claimed = shards.claim(tx, pool="default", device="CPU", holder=worker, lease_s=60.0)
            if claimed is None:
                return multiple()
            found = segments.of_shard(tx, claimed.id)
        assert claimed.token not in self.tokens
        self.tokens.add(claimed.token)
        done, _ = records.read(self.store, found)
        return Held(claimed, set(done))

    @rule(one=held, share=st.floats(0.1, 1.0), fail=st.booleans())
    def write_down_some(self, one: Held, share: float, fail: bool) -> None:
        plan = one.shard.plan
        open_ = [
            i
            for i in range(plan.first_index, plan.first_index + plan.n_requests)
            if i not in one.done
        ]
        some = open_[: max(1, int(len(open_) * share))] if open_ else []
        made = [self._record(i, fail=fail) for i in some]
        if not made:
            return
        one.writes += 1
        key = records.object_key(one.shard.job_id, plan.seq, one.shard.token, one.writes)
        draft = records.write(self.store, key, made, Usage(1, 0, 1))
        with self._expecting_the_fence(one) as tx:
            shards.checkpoint(tx, one.shard, draft)
            one.done.update(some)

    @rule(one=held, taken=st.booleans(), fail=st.booleans())
    def write_down_too_late(self, one: Held, taken: bool, fail: bool) -> None:
        """The lease has run out, and another worker may have the shard by now."""
        self.all_leases_run_out()
        if taken:
            with self.database.unit_of_work() as tx:
                shards.claim(tx, pool="default", device="CPU", holder="c", lease_s=60.0)
        self.write_down_some(one, 1.0, fail)

    @rule(one=consumes(held), failing=st.sets(st.integers(0, 2)))
    def finish(self, one: Held, failing: set[int]) -> None:
        plan = one.shard.plan
        with self.database.unit_of_work() as tx:
            earlier = segments.of_shard(tx, one.shard.id)
        whole, usage = records.read(self.store, earlier)
        for index in range(plan.first_index, plan.first_index + plan.n_requests):
            whole.setdefault(index, self._record(index, fail=index % 3 in failing))
        key = records.object_key(one.shard.job_id, plan.seq, one.shard.token, 999)
        draft = records.write(self.store, key, whole.values(), usage)
        with self._expecting_the_fence(one) as tx:
            shards.finish(tx, one.shard, draft)

    @rule(job_id=job_ids, failing=st.sets(st.integers(0, 2)))
    def work_all_off(self, job_id: JobId, failing: set[int]) -> None:
        """Long ways to an end are rarely found by chance."""
        while True:
            with self.database.unit_of_work() as tx:
                claimed = shards.claim(tx, pool="default", device="CPU", holder="d", lease_s=60.0)
            if claimed is None:
                break
            self.finish(Held(claimed), failing)
        self.finalize(job_id)

    @rule(one=held)
    def nobody_else_ends_a_held_shard(self, one: Held) -> None:
        """Neither a cut while it is leased, nor its holder with a line too few."""
        key = records.object_key(one.shard.job_id, one.shard.plan.seq, one.shard.token, 998)
        plan = one.shard.plan
        short = [
            self._record(index, fail=True)
            for index in range(plan.first_index + 1, plan.first_index + plan.n_requests)
        ]
        draft = records.write(self.store, key, short, Usage())
        with self.database.unit_of_work() as tx:
            query = text("SELECT lease_token FROM shards WHERE id = :id")
            holds = tx.execute(query, {"id": one.shard.id}).scalar_one() == one.shard.token
        with pytest.raises(Conflict if holds else LostLease), self.database.unit_of_work() as tx:
            shards.finish(tx, one.shard, draft)
        if holds:
            with pytest.raises(LostLease), self.database.unit_of_work() as tx:
                shards.cut(tx, one.shard.job_id, one.shard.id, draft)

    @rule(one=consumes(held))
    def release(self, one: Held) -> None:
        with self.database.unit_of_work() as tx:
            shards.release(tx, [one.shard.token])

    @rule()
    def all_leases_run_out(self) -> None:
        """Workers crash or freeze: they keep what they believe to hold."""
        with self.database.unit_of_work() as tx:
            tx.execute(
                text(
                    "UPDATE shards SET lease_until = now() - interval '1 s' WHERE state = 'leased'"
                )
            )
            shards.reap(tx)

    @rule(job_id=job_ids)
    def cancel(self, job_id: JobId) -> None:
        try:
            cancel.cancel(self.database, BELLS, job_id, PROJECT)
        except Conflict:
            assert self._state(job_id) in TERMINAL_JOB_STATES

    @rule(job_id=job_ids, event=st.sampled_from([JobEvent.PAUSE, JobEvent.RESUME, JobEvent.EXPIRE]))
    def move(self, job_id: JobId, event: JobEvent) -> None:
        try:
            with self.database.unit_of_work() as tx:
                jobs.advance(tx, job_id, event)
        except Conflict:
            return

    @rule(job_id=job_ids)
    def finalize(self, job_id: JobId) -> None:
        before = self._state(job_id)
        finalize.run_once(self.database, self.store, self.options, job_id)
        after = self._state(job_id)
        if after in TERMINAL_JOB_STATES and before is not after:
            self.terminal[job_id] = after

    @rule(job_id=job_ids)
    def retry(self, job_id: JobId) -> None:
        with self.database.unit_of_work() as tx:
            before = jobs.get(tx, job_id).counts
            final = segments.of_job(tx, job_id, final_only=True)
        with_failed = {s.shard_seq for s in final if s.draft.error_indexes}
        state = self._state(job_id)
        try:
            retry.retry(self.database, BELLS, job_id, PROJECT)
        except Conflict:
            assert state not in TERMINAL_JOB_STATES or before.failed == 0
        else:
            assert before.failed > 0
            del self.terminal[job_id]
            # What failed is open again; what completed stays, and so do shards without a failure.
            with self.database.unit_of_work() as tx:
                after = jobs.get(tx, job_id).counts
                reopened = shards.pending_of(tx, job_id, limit=100)
            assert (after.completed, after.failed) == (before.completed, 0)
            assert {plan.seq for _, plan in reopened} == with_failed

    @invariant()
    def nothing_is_lost_doubled_or_undone(self) -> None:
        with self.database.unit_of_work() as tx:
            seen = {job.id: job for job in jobs.page(tx, PROJECT, limit=100)}
            rows = tx.execute(text("SELECT * FROM segments ORDER BY shard_id")).all()
            unfinished = tx.execute(text(_DONE_AND_FINAL_DIFFER)).scalar_one()
        assert unfinished == 0
        assert seen.keys() == self.inputs.keys()
        outputs: dict[JobId, dict[int, bytes]] = {job_id: {} for job_id in seen}
        errors: dict[JobId, dict[int, bytes]] = {job_id: {} for job_id in seen}
        for row in rows:
            output, error = self._sections(row)
            for index, line in output:
                assert index not in outputs[row.job_id]
                assert index not in errors[row.job_id]
                outputs[row.job_id][index] = line
            for index, line in error:
                assert index not in outputs[row.job_id]
                assert index not in errors[row.job_id]
                errors[row.job_id][index] = line
        for job_id, job in seen.items():
            assert job.counts.completed == len(outputs[job_id])
            assert job.counts.failed == len(errors[job_id])
            # Whatever happens to the job, and although its other lines run again.
            assert self.completed[job_id].items() <= outputs[job_id].items()
            self.completed[job_id] = outputs[job_id]
            if job_id in self.terminal:
                assert job.state is self.terminal[job_id]
                ended = outputs[job_id] | errors[job_id]
                named = [json.loads(ended[index])["custom_id"] for index in sorted(ended)]
                assert named == self.inputs[job_id]

    def _sections(self, row: Any) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """The lines of a segment with their indexes: outputs, errors."""
        if row.object_key not in self.bodies:
            end = row.output_bytes + row.timings_bytes + row.error_bytes
            self.bodies[row.object_key] = self.store.get_range(row.object_key, 0, end)
        body, start = self.bodies[row.object_key], row.output_bytes + row.timings_bytes
        output = body[: row.output_bytes].splitlines()
        error = body[start : start + row.error_bytes].splitlines()
        return (
            list(zip(row.output_indexes, output, strict=True)),
            list(zip(row.error_indexes, error, strict=True)),
        )

    def _state(self, job_id: JobId) -> JobState:
        with self.database.unit_of_work() as tx:
            return jobs.states(tx, [job_id])[job_id]

    def _record(self, index: int, *, fail: bool) -> records.Record:
        if fail:
            return records.Record(index, error_line(f"r{index}", Failed(500, "x", "x")))
        # No two are alike, so that one cannot stand in for another.
        made = {"custom_id": f"r{index}", "made": next(self.stamp)}
        line = json.dumps(made).encode() + b"\n"
        timing = json.dumps({"n_in": 1, "n_out": 1, "t_enq": 1}).encode() + b"\n"
        return records.Record(index, line, timing)

    def _expecting_the_fence(self, one: Held):  # type: ignore[no-untyped-def]
        return _Fenced(self.database, one)


class _Fenced:
    """A unit of work that must raise LostLease just when the token is no longer the shard's."""

    def __init__(self, database: Database, one: Held) -> None:
        self._work = database.unit_of_work()
        with database.unit_of_work() as tx:
            token = tx.execute(
                text("SELECT lease_token FROM shards WHERE id = :id"), {"id": one.shard.id}
            ).scalar_one_or_none()
        self._holds = token == one.shard.token

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self._work.__enter__()

    def __exit__(self, kind, error, trace) -> bool:  # type: ignore[no-untyped-def]
        lost = isinstance(error, LostLease)
        assert lost is not self._holds
        try:
            self._work.__exit__(kind, error, trace)
        except LostLease:
            return True
        return lost


def test_any_order_of_events_keeps_every_line_exactly_once(
    database: Database, settings: Settings
) -> None:
    store = ObjectStore.from_url("memory://")
    run_state_machine_as_test(
        lambda: Lifecycle(database, store, settings),
        settings=hypothesis.settings(
            max_examples=10,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
