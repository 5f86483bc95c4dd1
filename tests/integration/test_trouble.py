"""What goes wrong around a job: races at its end, objects that are lost, engines of no use."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from batchgen.domain.errors import BatchgenError, Conflict, Unavailable
from batchgen.domain.ids import JobId
from batchgen.domain.jobs import ClaimedShard
from batchgen.domain.outcomes import Failed
from batchgen.domain.states import JobState
from batchgen.services import cancel, finalize, retry
from batchgen.storage import segments, shards
from batchgen.storage.object_directory import Directory
from batchgen.storage.objects import Backend, ObjectStore
from batchgen.storage.session import Database
from tests.house import PROJECT, House, chat_lines
from workers.prepare import failed_record
from workers.shard_work import ShardWork


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
    work.checkpoint(None)


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
        work.checkpoint(None)

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
        work.checkpoint(None)
    watched.after = lambda: None
    add_one()
    work.checkpoint(None)
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
