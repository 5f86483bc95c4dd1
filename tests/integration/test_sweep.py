"""What the sweep does although nobody asked, and what it leaves alone."""

from sqlalchemy import text

from batchgen.domain.states import JobState
from batchgen.services import sweep
from tests.house import House, chat_lines
from tests.integration.test_trouble import WatchedDatabase


def set_window(house: House, left: str) -> None:
    with house.database.unit_of_work() as tx:
        tx.execute(text("UPDATE jobs SET expires_at = now() + :left ::interval"), {"left": left})


def test_a_job_whose_window_has_passed_expires(house: House) -> None:
    house.register()
    job = house.queue(chat_lines(3))
    set_window(house, "-1 s")
    assert sweep.run_once(house.database, house.store, house.bells).jobs_expired == 1
    house.finalize(job.id)
    assert house.job(job.id).state is JobState.EXPIRED
    assert set(house.codes(job.id).values()) == {"batch_expired"}


def test_a_job_that_is_given_time_while_the_sweep_looks_does_not_expire(
    house: House, database_url: str
) -> None:
    house.register()
    job = house.queue(chat_lines(3))
    set_window(house, "-1 s")
    watched = WatchedDatabase(database_url)
    seen = 0

    def give_time() -> None:
        nonlocal seen
        seen += 1
        if seen == 2:  # the look for what is overdue comes after the one for ended leases
            set_window(house, "1 h")

    watched.after = give_time
    try:
        assert sweep.run_once(watched, house.store, house.bells).jobs_expired == 0
    finally:
        watched.close()
    assert seen > 2
    assert house.job(job.id).state is JobState.QUEUED
