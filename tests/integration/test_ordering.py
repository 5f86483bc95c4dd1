"""In which order a job's lines run: together where they begin alike, long ones early, or as they
come.
"""

import threading
from itertools import pairwise
from typing import Any

import pytest

from batchgen.domain.ids import JobId
from batchgen.domain.jobs import Ordering, Section
from batchgen.domain.states import JobState
from batchgen.services import cancel
from batchgen.storage import shards
from tests.house import PROJECT, House, chat_line, chat_lines
from tests.waiting import until

# Slow enough for a session to read ahead of it, and to be caught at work.
SLOW = {"max_num_seqs": 4, "step_s": 0.004}


@pytest.fixture
def house(house: House) -> House:
    """Shards of 40 lines, so that a few of them fill a window."""
    settings = house.settings.model_copy(update={"shard_lines": 40})
    return House(house.database, house.store, settings)


def instructed(n: int, *, instructions: int) -> list[dict[str, Any]]:
    """Lines that take turns with a few long instructions."""
    return [chat_line(f"r{i}", f"{i % instructions:02}" * 120 + f" say {i}.") for i in range(n)]


def in_order_of_start(house: House, job_id: JobId) -> list[int]:
    """The numbers of the lines, in the order in which the engine began them."""
    timings = house.lines(job_id, Section.TIMINGS)
    return [
        int(str(timing["custom_id"]).removeprefix("r"))
        for timing in sorted(timings, key=lambda timing: timing["t_adm"])
    ]


def hit_rate(house: House, job_id: JobId) -> float:
    metrics = house.job(job_id).metrics
    assert metrics is not None
    return float(metrics["values"]["prefix_hit_rate"]["value"])


def test_lines_that_begin_alike_run_together_across_shards(house: House) -> None:
    house.register(**SLOW, kv_blocks=120, enable_prefix_caching=True)
    lines = instructed(240, instructions=12)
    ordered = house.run(lines)
    plain = house.run(lines, ordering=Ordering.INPUT)
    for job in (ordered, plain):
        assert job.counts.completed == 240
        assert [r["custom_id"] for r in house.outputs(job.id)] == [f"r{i}" for i in range(240)]
    assert hit_rate(house, plain.id) == 0
    assert hit_rate(house, ordered.id) > 0.3
    starts = in_order_of_start(house, ordered.id)
    assert sum(one % 12 != other % 12 for one, other in pairwise(starts)) < 120


def test_a_job_that_asks_for_it_runs_as_its_input_comes(house: House) -> None:
    house.register(**SLOW)
    lines = [chat_line(f"r{i}", f"say {i}.", max_tokens=1 + i % 7) for i in range(120)]
    job = house.run(lines, ordering=Ordering.INPUT)
    assert in_order_of_start(house, job.id) == list(range(120))


def test_a_long_request_at_the_end_of_the_input_starts_early(house: House) -> None:
    house.register(**SLOW)
    job = house.run([*chat_lines(239), chat_line("r239", "say more.", max_tokens=100)])
    assert in_order_of_start(house, job.id).index(239) < 200


def test_lines_read_ahead_do_not_keep_more_urgent_ones_waiting(house: House) -> None:
    house.register(**SLOW)
    patient = house.queue(chat_lines(400))
    worker = house.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    try:
        until(lambda: house.job(patient.id).counts.completed)
        urgent = house.queue(chat_lines(8), priority=5)
        until(lambda: house.job(urgent.id).counts.completed == 8)
        left = house.job(patient.id).counts
        assert left.completed < left.total
        serving.join(60)
    finally:
        worker.leave()
    for job in (patient, urgent):
        house.finalize(job.id)
        assert house.job(job.id).state is JobState.COMPLETED


def test_a_more_urgent_job_of_many_shards_is_not_held_up_between_them(house: House) -> None:
    house.register(**SLOW)
    patient = house.queue(chat_lines(600))
    worker = house.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    try:
        until(lambda: house.job(patient.id).counts.completed)
        urgent = house.queue(chat_lines(160), priority=5)
        serving.join(60)
    finally:
        worker.leave()
    begun = {}
    for job in (patient, urgent):
        house.finalize(job.id)
        begun[job.id] = [line["t_adm"] for line in house.lines(job.id, Section.TIMINGS)]
    first, last = min(begun[urgent.id]), max(begun[urgent.id])
    assert sum(first < at < last for at in begun[patient.id]) < 20


def test_what_was_read_ahead_of_a_cancelled_job_is_cut_and_the_next_job_runs(house: House) -> None:
    house.register(**SLOW)
    gone, stays = house.queue(chat_lines(200)), house.queue(chat_lines(50))
    worker = house.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    try:
        until(lambda: house.job(gone.id).counts.completed)
        cancel.cancel(house.database, house.bells, gone.id, PROJECT)
        serving.join(60)
    finally:
        worker.leave()
    for job in (gone, stays):
        house.finalize(job.id)
    assert house.job(gone.id).state is JobState.CANCELLED
    assert sorted(house.ids(gone.id)) == sorted(f"r{i}" for i in range(200))
    assert house.job(stays.id).counts.completed == 50


@pytest.mark.parametrize("action", ["crash", "hang"])
def test_a_poison_among_lines_read_ahead_costs_one_line(house: House, action: str) -> None:
    rule = {"contains": "say 90.", "action": action, "signal": 11, "after_tokens": 3}
    house.register(**SLOW, rules=[rule], kv_blocks=120, enable_prefix_caching=True)
    job = house.run(instructed(160, instructions=8))
    assert house.codes(job.id) == {"r90": "engine_crash"}
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(160))


def test_shards_claimed_ahead_leave_as_many_to_each_other_device(house: House) -> None:
    house.register()
    house.queue(chat_lines(40 * 7))
    others = [house.worker(device) for device in ("CPU.1", "CPU.2")]
    asked: dict[str, Any] = {"pool": "default", "device": "CPU", "holder": "a", "lease_s": 60}
    try:
        got = []
        with house.database.unit_of_work() as tx:
            while (claimed := shards.claim(tx, **asked, ahead=len(got))) is not None:
                got.append(claimed)
        # Of six that were left, a second one leaves five to three devices: no third one.
        assert [claimed.plan.seq for claimed in got] == [0, 1]
    finally:
        for other in others:
            other.leave()
    with house.database.unit_of_work() as tx:
        while (claimed := shards.claim(tx, **asked, ahead=len(got))) is not None:
            got.append(claimed)
    assert [claimed.plan.seq for claimed in got] == list(range(7))


def test_a_session_that_may_not_read_ahead_asks_for_no_shard_before_its_time(
    house: House,
) -> None:
    house.register(**SLOW)
    settings = house.settings.model_copy(update={"lookahead_lines": 0})
    site = House(house.database, house.store, settings)
    job = site.queue(chat_lines(400))
    worker = site.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    try:
        until(lambda: site.job(job.id).counts.completed)
        with site.database.unit_of_work() as tx:
            assert shards.leased_of(tx, job.id) <= 2
        serving.join(60)
    finally:
        worker.leave()
    site.finalize(job.id)
    assert sorted(site.ids(job.id)) == sorted(f"r{i}" for i in range(400))
