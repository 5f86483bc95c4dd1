"""What goes wrong around a job: races at its end, objects that are lost, engines of no use."""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from batchgen.domain.clock import SystemClock
from batchgen.domain.errors import BatchgenError, Conflict, NotFound, Unavailable
from batchgen.domain.ids import JobId
from batchgen.domain.jobs import ClaimedShard, Section, Usage
from batchgen.domain.outcomes import Choice, Failed, FinishReason, Generation, Timings
from batchgen.domain.states import JobState
from batchgen.engines.protocol import Applied
from batchgen.engines.spec import SimulatedSpec
from batchgen.services import cancel, finalize, retry
from batchgen.storage import fleet, job_events, jobs, segments, shards, suspects
from batchgen.storage.object_directory import Directory
from batchgen.storage.objects import Backend, ObjectStore
from batchgen.storage.session import Database
from tests.house import PROJECT, House, chat_lines
from workers.context import Context
from workers.control import ControlWorker
from workers.poller import Poller
from workers.prepare import GenerationPreparer, Prepared, failed_record
from workers.shard_work import ShardWork
from workers.stop import Stop


class WatchedDatabase(Database):
    """Calls `before` ahead of every transaction, and `after` once one has committed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    @contextmanager
    def unit_of_work(self) -> Iterator[Connection]:
        self.before()
        with super().unit_of_work() as tx:
            yield tx
        self.after()


@pytest.fixture
def watched(database_url: str) -> Iterator[WatchedDatabase]:
    found = WatchedDatabase(database_url)
    yield found
    found.close()


def claim(house: House, holder: str = "a") -> ClaimedShard:
    with house.database.unit_of_work() as tx:
        found = shards.claim(tx, pool="default", device="CPU", holder=holder, lease_s=60)
    assert found is not None
    return found


def finish_with_errors(house: House, claimed: ClaimedShard) -> None:
    work = ShardWork(house.database, house.store, claimed)
    while (line := work.next_line()) is not None:
        work.add(failed_record(line, Failed(500, "x", "x")))
    work.checkpoint()


def is_all_leased(house: House, job_id: JobId) -> bool:
    with house.database.unit_of_work() as tx:
        return bool(shards.leased_of(tx, job_id)) and not shards.pending_of(tx, job_id, limit=1)


def test_a_shard_given_back_while_the_job_is_being_cut_is_cut_too(
    house: House, watched: WatchedDatabase
) -> None:
    house.register()
    job = house.queue(chat_lines(20))
    held = claim(house)
    cancel.cancel(house.database, house.bells, job.id, PROJECT)
    looks = 0

    def give_back() -> None:
        nonlocal looks
        if is_all_leased(house, job.id):
            looks += 1
            if looks == 2:
                with house.database.unit_of_work() as tx:
                    shards.release(tx, [held.token])

    watched.before = give_back
    finalize.run_once(watched, house.store, house.settings, job.id)
    assert looks == 2
    house.finalize(job.id)
    assert house.job(job.id).state is JobState.CANCELLED
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(20))


class WatchedStore(ObjectStore):
    """Calls `before_list` ahead of every listing."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.before_list: Callable[[], None] = lambda: None

    def list(self, prefix: str = "") -> Iterator[str]:
        self.before_list()
        return super().list(prefix)


def test_what_a_retry_writes_at_once_is_no_orphan_of_the_end_before(house: House) -> None:
    house.register()
    job = house.queue(chat_lines(4))
    finish_with_errors(house, claim(house))
    store = WatchedStore(Directory.from_url(house.settings.store))

    def run_again() -> None:
        retry.retry(house.database, house.bells, job.id, PROJECT)
        work = ShardWork(house.database, house.store, claim(house))
        line = work.next_line()
        assert line is not None
        work.add(failed_record(line, Failed(500, "x", "x")))
        work.checkpoint()

    store.before_list = run_again
    finalize.run_once(house.database, store, house.settings, job.id)
    with house.database.unit_of_work() as tx:
        keys = segments.referenced_keys(tx, job.id)
    assert len(keys) == 2
    assert all(house.store.exists(key) for key in keys)


def test_a_checkpoint_whose_commit_went_unheard_is_written_once(
    house: House, watched: WatchedDatabase
) -> None:
    house.register()
    job = house.queue(chat_lines(3))
    work = ShardWork(watched, house.store, claim(house))

    def add_one() -> None:
        line = work.next_line()
        assert line is not None
        work.add(failed_record(line, Failed(500, "x", "x")))

    def answer_is_lost() -> None:
        raise Unavailable("the server went away after its commit")

    add_one()
    watched.after = answer_is_lost
    with pytest.raises(Unavailable):
        work.checkpoint()
    watched.after = lambda: None
    add_one()
    work.checkpoint()
    assert house.job(job.id).counts.failed == 2
    again = ShardWork(house.database, house.store, work.claimed)
    assert [again.has_record(i) for i in range(3)] == [True, True, False]


def test_two_retries_at_once_are_one_retry_and_one_refusal(house: House) -> None:
    house.register()
    job = house.queue(chat_lines(4))
    finish_with_errors(house, claim(house))
    house.finalize(job.id)
    ends: list[str] = []
    go = threading.Barrier(2)

    def one() -> None:
        go.wait()
        try:
            retry.retry(house.database, house.bells, job.id, PROJECT)
        except Conflict:
            ends.append("refused")
        except BatchgenError as error:
            ends.append(type(error).__name__)
        else:
            ends.append("retried")

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(ends) == ["refused", "retried"]


def test_each_retry_gives_the_job_its_own_window_again(house: House) -> None:
    house.register()
    job = house.queue(chat_lines(1), completion_window="2h")
    finish_with_errors(house, claim(house))
    house.finalize(job.id)
    for _ in range(2):
        with house.database.unit_of_work() as tx:
            tx.execute(
                text(
                    "UPDATE jobs SET created_at = created_at - interval '10 d', "
                    "expires_at = expires_at - interval '1 d'"
                )
            )
        retry.retry(house.database, house.bells, job.id, PROJECT)
        with house.database.unit_of_work() as tx:
            left = tx.execute(text("SELECT expires_at - now() FROM jobs")).scalar_one()
        assert 1.9 < left.total_seconds() / 3600 <= 2
        finish_with_errors(house, claim(house))
        house.finalize(job.id)


def test_a_claim_passes_over_a_job_whose_last_shard_another_is_claiming(house: House) -> None:
    house.register()
    first, second = house.queue(chat_lines(1)), house.queue(chat_lines(1))
    asked: dict[str, Any] = {"pool": "default", "device": "CPU", "lease_s": 60}
    with house.database.unit_of_work() as one, house.database.unit_of_work() as other:
        mine = shards.claim(one, holder="a", **asked)
        theirs = shards.claim(other, holder="b", **asked)
    assert mine is not None
    assert theirs is not None
    assert [mine.job_id, theirs.job_id] == [first.id, second.id]


def test_a_transaction_that_its_server_gave_up_is_to_be_tried_again(house: House) -> None:
    def frozen_in_a_transaction() -> None:
        with house.database.unit_of_work() as tx:
            tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 50"))
            threading.Event().wait(0.3)
            tx.execute(text("SELECT 1"))

    with pytest.raises(Unavailable):
        frozen_in_a_transaction()


def test_a_deadlock_is_a_reason_to_try_again(house: House) -> None:
    with house.database.unit_of_work() as tx:
        tx.execute(text("CREATE TABLE pair (id int PRIMARY KEY)"))
        tx.execute(text("INSERT INTO pair VALUES (1), (2)"))
    meet = threading.Barrier(2)
    ends: list[str] = []

    def lock(first: int, second: int) -> None:
        query = text("SELECT 1 FROM pair WHERE id = :id FOR UPDATE")
        try:
            with house.database.unit_of_work() as tx:
                tx.execute(query, {"id": first})
                meet.wait()
                tx.execute(query, {"id": second})
        except Unavailable:
            ends.append("try again")

    threads = [threading.Thread(target=lock, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ends == ["try again"]


def test_a_copy_that_loses_its_server_is_unavailable(house: House) -> None:
    with pytest.raises(Unavailable), house.database.unit_of_work():
        raise psycopg.OperationalError("the connection is lost")


def test_an_engine_that_crashes_on_whatever_it_is_given_ends_its_job(house: House) -> None:
    rule = {"contains": "say", "action": "crash", "signal": 11, "after_tokens": 1}
    house.register(max_num_seqs=4, step_s=0.001, rules=[rule])
    job = house.run(chat_lines(40))
    assert job.state is JobState.COMPLETED
    assert set(house.codes(job.id).values()) <= {"engine_crash", "engine_load_failed"}
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(40))


def test_a_host_that_cannot_be_started_ends_its_lines_with_the_reason(house: House) -> None:
    house.register()
    settings = house.settings.model_copy(update={"host_command": "/no/such/python"})
    other = House(house.database, house.store, settings)
    job = other.run(chat_lines(3))
    assert set(other.codes(job.id).values()) == {"engine_load_failed"}


def test_a_spec_that_this_worker_cannot_read_ends_its_lines_with_the_reason(house: House) -> None:
    house.register()
    job = house.queue(chat_lines(3))
    with house.database.unit_of_work() as tx:
        tx.execute(text("UPDATE jobs SET engine_spec = engine_spec || '{\"newer\": 1}'"))
    worker = house.worker()
    try:
        worker.serve()
    finally:
        worker.leave()
    house.finalize(job.id)
    assert set(house.codes(job.id).values()) == {"engine_load_failed"}


def _serve(house: House, *, times: int) -> None:
    worker = house.worker()
    try:
        for _ in range(times):
            worker.serve()
    finally:
        worker.leave()


def test_a_lost_input_ends_its_job_and_holds_no_other_up(house: House) -> None:
    house.register()
    lost, good = house.queue(chat_lines(15)), house.queue(chat_lines(5))
    with house.database.unit_of_work() as tx:
        house.store.delete(jobs.input_key(tx, lost.id))
    _serve(house, times=20)
    for job in (lost, good):
        house.finalize(job.id)
        assert house.job(job.id).state is JobState.COMPLETED
    assert house.job(lost.id).counts.failed == 15
    assert set(house.codes(lost.id).values()) == {"input_lost"}
    assert house.job(good.id).counts.completed == 5


def test_a_lost_input_lets_a_cancelled_job_end(house: House) -> None:
    house.register()
    job = house.queue(chat_lines(15))
    with house.database.unit_of_work() as tx:
        house.store.delete(jobs.input_key(tx, job.id))
    cancel.cancel(house.database, house.bells, job.id, PROJECT)
    house.finalize(job.id)
    assert house.job(job.id).state is JobState.CANCELLED
    assert len(house.lines(job.id, Section.ERROR)) == 15


@pytest.mark.parametrize("damage", ["lost", "torn"])
def test_lines_of_a_checkpoint_that_cannot_be_read_run_again(house: House, damage: str) -> None:
    house.register()
    job = house.queue(chat_lines(3))
    held = claim(house)
    work = ShardWork(house.database, house.store, held)
    line = work.next_line()
    assert line is not None
    work.add(failed_record(line, Failed(500, "x", "x")))
    work.checkpoint()
    with house.database.unit_of_work() as tx:
        (key,) = segments.referenced_keys(tx, job.id)
        shards.release(tx, [held.token])
    if damage == "lost":
        house.store.delete(key)
    else:
        house.store.put(key, b"\0" * house.store.size(key))
    _serve(house, times=1)
    house.finalize(job.id)
    assert house.job(job.id).counts.completed == 3


def test_a_strike_taken_back_leaves_the_earlier_ones(house: House) -> None:
    house.register()
    house.queue(chat_lines(2))
    shard = claim(house).id
    with house.database.unit_of_work() as tx:
        suspects.strike(tx, shard, [0, 1], "run alone")
        suspects.strike(tx, shard, [1], "run alone")
        for index in (0, 1):
            suspects.take_back(tx, shard, index)
        assert suspects.strikes(tx, [shard]) == {(shard, 1): 1}


def test_a_poller_goes_on_whatever_a_look_raises() -> None:
    stop, looks = Stop(), 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            stop.set()
        raise KeyError("a bug")

    poller = Poller(look, 0.001, stop, on_lost=lambda: None)
    poller.start()
    poller.join(10)
    assert looks == 2


def test_a_job_that_cannot_be_ended_holds_no_other_up(house: House) -> None:
    house.register()
    bad, good = house.queue(chat_lines(1)), house.queue(chat_lines(1))
    for _ in (bad, good):
        finish_with_errors(house, claim(house))
    with house.database.unit_of_work() as tx:
        # What must never be: a line more than there are records.
        tx.execute(text("UPDATE jobs SET n_total = 2 WHERE id = :id"), {"id": bad.id})
    context = Context(house.settings, house.database, house.store, house.bells, SystemClock())
    ControlWorker(context).looks()["finalize"]()
    assert house.job(good.id).state is JobState.COMPLETED
    assert house.job(bad.id).state is JobState.FINALIZING


def test_a_store_that_is_not_mounted_is_no_lost_object(tmp_path: Path) -> None:
    store = Directory(tmp_path / "mount")
    with pytest.raises(NotFound):
        store.size("files/one")
    shutil.rmtree(tmp_path / "mount")
    with pytest.raises(Unavailable):
        store.size("files/one")


def test_what_nobody_can_make_text_of_costs_its_own_line_only(house: House) -> None:
    house.register()
    house.queue(chat_lines(1))
    held = claim(house)
    line = ShardWork(house.database, house.store, held).next_line()
    applied = Applied(
        engine="simulated",
        engine_version="1",
        device="CPU",
        device_name="none",
        config={},
        max_model_len=1_000,
        vocab_size=256,
        max_live=1,
        load_s=0.0,
    )
    preparer = GenerationPreparer(SimulatedSpec(), applied, max_output_tokens=10)
    assert line is not None
    prepared = preparer.prepare(held, line)
    assert isinstance(prepared, Prepared)
    no_token = Choice(token_ids=(-1,), finish_reason=FinishReason.STOP)
    generation = Generation((no_token,), n_in=1, n_cached=0, n_out=1, timings=Timings(t_enq=1))
    record, usage = preparer.output(held, prepared, generation)
    assert record.timing is None
    assert json.loads(record.line)["custom_id"] == "r0"
    assert usage == Usage()


def test_the_sweep_rings_for_idle_workers_only(house: House) -> None:
    house.register()
    house.queue(chat_lines(1))

    def places() -> list[tuple[str, str | None]]:
        with house.database.unit_of_work() as tx:
            return fleet.places_with_work(tx)

    assert places() == []
    worker = house.worker()
    assert places() == [("default", None)]
    worker.leave()
    assert places() == []


class NotingStore(ObjectStore):
    """Calls `on_read` at every read."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.on_read: Callable[[], None] = lambda: None

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self.on_read()
        return super().get_range(key, start, end)


class HastyClock(SystemClock):
    """Each look at it finds it `step_s` later."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._at = 0.0

    def monotonic(self) -> float:
        self._at += self._step_s
        return self._at


def test_the_lease_on_a_job_lasts_while_its_metrics_are_made(house: House) -> None:
    house.register()
    job = house.queue(chat_lines(30))
    for _ in range(3):
        finish_with_errors(house, claim(house))
    store = NotingStore(Directory.from_url(house.settings.store))
    ends: list[str] = []

    def note() -> None:
        with house.database.unit_of_work() as tx:
            ends.append(str(tx.execute(text("SELECT control_until FROM jobs")).scalar_one()))

    store.on_read = note
    clock = HastyClock(house.settings.lease_s / 2)
    finalize.run_once(house.database, store, house.settings, job.id, clock=clock)
    assert house.job(job.id).state is JobState.COMPLETED
    assert len(ends) == len(set(ends)) == 3
    assert ends == sorted(ends)


# A host whose engine ends the process as soon as it is given a certain prompt, before any step.
_TOUCHY_HOST = """
import os
from batchgen.engines import host
from batchgen.engines.simulated.engine import SimulatedEngine

class Touchy(SimulatedEngine):
    def submit(self, requests):
        if any(b"say 2." in bytes(request.prompt_ids) for request in requests):
            os.abort()
        return super().submit(requests)

class TouchyHost(host.Host):
    def __init__(self, pipe, trail, *_):
        super().__init__(pipe, trail, lambda spec: Touchy())

host.Host = TouchyHost
raise SystemExit(host.main())
"""


def test_a_request_that_kills_the_engine_before_any_step_costs_one_line(
    house: House, tmp_path: Path
) -> None:
    script = tmp_path / "host.py"
    script.write_text(_TOUCHY_HOST)
    settings = house.settings.model_copy(update={"host_command": f"{sys.executable} {script}"})
    touchy = House(house.database, house.store, settings)
    touchy.register(max_num_seqs=4)
    job = touchy.run(chat_lines(6))
    assert touchy.codes(job.id) == {"r2": "engine_crash"}
    assert job.counts.completed == 5


_ONCE_LOADED_HOST = """
import os
import sys
from pathlib import Path

from batchgen.engines import host
from batchgen.engines.simulated.engine import SimulatedEngine

class OnceLoaded(SimulatedEngine):
    def load(self, spec):
        mark = Path(sys.argv[0]).with_suffix(".loaded")
        if mark.exists():
            os.abort()
        mark.touch()
        return super().load(spec)

raise SystemExit(host.main(lambda spec: OnceLoaded()))
"""


def test_an_engine_that_cannot_be_loaded_again_after_a_probe_says_how_it_died(
    house: House, tmp_path: Path
) -> None:
    script = tmp_path / "host.py"
    script.write_text(_ONCE_LOADED_HOST)
    settings = house.settings.model_copy(update={"host_command": f"{sys.executable} {script}"})
    site = House(house.database, house.store, settings)
    site.register(rules=[{"contains": "say 0.", "action": "crash", "signal": 11}])
    job = site.queue(chat_lines(2))
    with house.database.unit_of_work() as tx:
        ((shard_id, _),) = shards.pending_of(tx, job.id, limit=1)
        suspects.strike(tx, shard_id, [0], "its worker was lost")
    _serve(site, times=1)
    with house.database.unit_of_work() as tx:
        events = job_events.after_id(tx, job.id, 0)
    reasons = [str(data["reason"]) for _, _, event, data in events if event == "engine_failed"]
    assert len(reasons) == 2
    assert all("signal 6" in reason for reason in reasons)
