"""Workers that are lost again and again over the same work: it ends, and as little as can be with
it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from batchgen.domain.errors import Unavailable
from batchgen.domain.failpoints import Failpoint
from batchgen.domain.jobs import GIVE_UP_AFTER, SUSPECT_AFTER, ClaimedShard, Section
from batchgen.domain.states import JobState
from batchgen.services import finalize, ingest, retry
from batchgen.services.control_lease import GIVE_UP_AFTER as STEPS_FAILED
from batchgen.services.control_lease import control_lease
from batchgen.storage import segments, shards
from batchgen.storage.object_directory import Directory
from batchgen.storage.objects import ObjectStore
from tests.crashing import killed_at
from tests.house import PROJECT, House, chat_lines
from tests.recovery import bring_to_its_end


@pytest.fixture
def small(house: House) -> House:
    """Shards of three lines."""
    made = House(house.database, house.store, house.settings.model_copy(update={"shard_lines": 3}))
    made.register()
    return made


def claim(house: House, *, beside_others: bool = False, loyal: bool = False) -> ClaimedShard | None:
    with house.database.unit_of_work() as tx:
        return shards.claim(
            tx,
            pool="default",
            device="CPU",
            holder="w",
            lease_s=60,
            beside_others=beside_others,
            loyal=loyal,
        )


def lose(house: House, *, times: int) -> None:
    """Claims whose holder is not heard of again."""
    for _ in range(times):
        assert claim(house) is not None
        with house.database.unit_of_work() as tx:
            tx.execute(
                text(
                    "UPDATE shards SET lease_until = now() - interval '1 s' WHERE state = 'leased'"
                )
            )
            shards.reap(tx)


def test_a_line_that_takes_each_worker_down_costs_itself_only(small: House) -> None:
    job = small.queue(chat_lines(6))
    for _ in range(SUSPECT_AFTER + 1):
        assert killed_at(Failpoint.LINE_READ, "work", small.settings, job.id)
    end = bring_to_its_end(small, job.id)
    assert end.state is JobState.COMPLETED
    assert small.codes(job.id) == {"r0": "worker_lost"}
    assert end.counts.completed == 5


def test_a_line_that_was_given_up_runs_when_a_user_asks_for_another_try(small: House) -> None:
    job = small.queue(chat_lines(3))
    for _ in range(SUSPECT_AFTER + 1):
        assert killed_at(Failpoint.LINE_READ, "work", small.settings, job.id)
    bring_to_its_end(small, job.id)
    retry.retry(small.database, small.bells, job.id, PROJECT)
    assert bring_to_its_end(small, job.id).counts.completed == 3


def test_a_shard_that_no_worker_survives_is_given_up_and_the_job_goes_on(small: House) -> None:
    job = small.queue(chat_lines(6))
    lose(small, times=GIVE_UP_AFTER)
    end = bring_to_its_end(small, job.id)
    assert end.state is JobState.COMPLETED
    assert small.codes(job.id) == dict.fromkeys(("r0", "r1", "r2"), "worker_lost")
    assert end.counts.completed == 3


def test_who_gives_a_shard_back_has_not_been_lost(small: House) -> None:
    small.queue(chat_lines(3))
    for _ in range(2 * GIVE_UP_AFTER):
        held = claim(small)
        assert held is not None
        assert held.attempts == 1
        with small.database.unit_of_work() as tx:
            shards.release(tx, [held.token])


def test_a_suspect_shard_is_claimed_by_who_has_no_other(small: House) -> None:
    small.queue(chat_lines(3))
    lose(small, times=SUSPECT_AFTER)
    assert claim(small, beside_others=True) is None
    held = claim(small)
    assert held is not None
    assert held.suspect


def test_later_jobs_do_not_keep_a_suspect_shard_waiting_for_ever(small: House) -> None:
    first = small.queue(chat_lines(3))
    lose(small, times=SUSPECT_AFTER)
    later = small.queue(chat_lines(6))
    beside = claim(small, beside_others=True, loyal=True)
    assert beside is not None
    assert beside.job_id == later.id
    assert claim(small, beside_others=True) is None
    alone = claim(small)
    assert alone is not None
    assert alone.job_id == first.id
    after = claim(small, beside_others=True)
    assert after is not None
    assert after.job_id == later.id


def wake_control(house: House) -> None:
    with house.database.unit_of_work() as tx:
        tx.execute(
            text(
                "UPDATE jobs SET control_until = now() - interval '1 s' "
                "WHERE control_until IS NOT NULL"
            )
        )


class BrokenStore(ObjectStore):
    """Raises `error` wherever an object is read as a stream."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(Directory.from_url(url))
        self._error = error

    def stream(self, *_: Any) -> Iterator[bytes]:
        raise self._error


def test_a_file_at_which_validation_fails_each_time_is_refused_at_last(small: House) -> None:
    job = small.submit(chat_lines(3))
    broken = BrokenStore(small.settings.store, ZeroDivisionError("a bug"))

    def ingest_once() -> object:
        return ingest.run_once(small.database, broken, small.bells, small.settings, job.id)

    for _ in range(STEPS_FAILED):
        with pytest.raises(ZeroDivisionError):
            ingest_once()
        assert ingest_once() is None  # it rests
        wake_control(small)
    assert ingest_once() is not None
    refused = small.job(job.id)
    assert refused.state is JobState.FAILED
    assert [fault.code for fault in refused.faults] == ["internal_error"]


def test_a_step_that_failed_a_thousand_times_rests_as_before(small: House) -> None:
    job = small.submit(chat_lines(3))
    with small.database.unit_of_work() as tx:
        tx.execute(text("UPDATE jobs SET control_attempts = 2000"))

    def fail() -> None:
        with control_lease(small.database, job.id, lease_s=1_000):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        fail()
    with small.database.unit_of_work() as tx:
        rests = tx.execute(text("SELECT control_until - now() < interval '2 min' FROM jobs"))
        assert rests.scalar_one()


def test_a_store_that_is_away_is_waited_for(small: House) -> None:
    job = small.submit(chat_lines(3))
    away = BrokenStore(small.settings.store, Unavailable("away"))
    for _ in range(2 * STEPS_FAILED):
        with pytest.raises(Unavailable):
            ingest.run_once(small.database, away, small.bells, small.settings, job.id)
    small.ingest(job.id)
    assert small.job(job.id).state is JobState.QUEUED


def test_a_job_whose_metrics_cannot_be_made_ends_without_them(small: House) -> None:
    job = small.queue(chat_lines(3))
    worker = small.worker()
    worker.serve()
    worker.leave()
    with small.database.unit_of_work() as tx:
        (segment,) = segments.final_of_job(tx, job.id)
    start, end = segment.span(Section.TIMINGS)
    body = small.store.get_range(segment.object_key, 0, end)
    small.store.put(segment.object_key, body[:start] + b"?" * (end - start - 1) + b"\n")

    def finalize_once() -> object:
        return finalize.run_once(small.database, small.store, small.settings, job.id)

    for _ in range(STEPS_FAILED):
        with pytest.raises(ValueError, match="Expecting"):
            finalize_once()
        assert finalize_once() is None
        wake_control(small)
    finalize_once()
    ended = small.job(job.id)
    assert ended.state is JobState.COMPLETED
    assert ended.metrics is not None
    assert ended.metrics["n_completed"] == 3
    assert all(value["reason"] for value in ended.metrics["values"].values())
