"""The device worker's session: real engine hosts, a scripted engine, a real database."""

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from batchgen.domain.clock import SystemClock
from batchgen.domain.errors import Conflict
from batchgen.domain.ids import JobId
from batchgen.domain.requests import SamplingParams
from batchgen.domain.states import JobState
from batchgen.engines.protocol import EngineRequest
from batchgen.engines.spec import SimulatedSpec
from batchgen.services import cancel, retry
from batchgen.storage import devices, jobs, shards
from tests.house import MODELS, PROJECT, House, chat_line, chat_lines
from tests.waiting import until
from workers.context import Context
from workers.device_record import DeviceRecord
from workers.resident import Resident
from workers.session import Session
from workers.stop import Stop


def test_every_line_ends_in_the_output_in_input_order(house: House) -> None:
    house.register()
    job = house.run(chat_lines(120))
    assert job.state is JobState.COMPLETED
    assert [r["custom_id"] for r in house.outputs(job.id)] == [f"r{i}" for i in range(120)]
    assert (job.counts.total, job.counts.completed, job.counts.failed) == (120, 120, 0)


def test_a_bad_request_costs_its_own_line_only(house: House) -> None:
    house.register()
    lines = chat_lines(20)
    lines[7]["body"]["messages"] = [{"role": "user"}]
    lines[9]["body"]["temperature"] = 99
    lines[11]["body"]["seed"] = 2**64
    job = house.run(lines)
    assert job.state is JobState.COMPLETED
    assert (job.counts.completed, job.counts.failed) == (17, 3)
    assert set(house.codes(job.id)) == {"r7", "r9", "r11"}
    assert all(r["response"]["status_code"] == 400 for r in house.errors(job.id))


def test_a_job_whose_lines_all_fail_is_completed_and_says_so(house: House) -> None:
    house.register()
    job = house.run(chat_lines(3, temperature=-1))
    assert job.state is JobState.COMPLETED
    assert job.all_failed
    assert job.output_file_id is None
    assert job.error_file_id is not None


@pytest.mark.parametrize("action", ["crash", "raise", "hang"])
def test_a_request_that_kills_the_engine_costs_one_line(house: House, action: str) -> None:
    rule = {"contains": "say 41.", "action": action, "signal": 11, "after_tokens": 3}
    house.register(max_num_seqs=16, step_s=0.001, rules=[rule])
    job = house.run(chat_lines(100))
    assert job.state is JobState.COMPLETED
    assert house.codes(job.id) == {"r41": "engine_crash"}
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(100))


def test_two_poison_requests_are_told_from_their_neighbours(house: House) -> None:
    rules = [
        {"contains": f"say {i}.", "action": "crash", "signal": 6, "after_tokens": 2} for i in (3, 9)
    ]
    house.register(max_num_seqs=16, step_s=0.001, rules=rules)
    job = house.run(chat_lines(40))
    assert house.codes(job.id) == {"r3": "engine_crash", "r9": "engine_crash"}
    assert job.counts.completed == 38


def test_a_crash_that_does_not_come_again_costs_no_line(house: House) -> None:
    house.register(max_num_seqs=16, step_s=0.002)
    job = house.queue(chat_lines(100))
    worker = house.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    try:
        host = until(lambda: worker.engine_pid)
        until(lambda: house.job(job.id).counts.completed > 0 or not serving.is_alive())
        os.kill(host, signal.SIGKILL)
        serving.join(60)
    finally:
        worker.leave()
    house.finalize(job.id)
    assert house.job(job.id).counts.completed == 100
    assert len(set(house.ids(job.id))) == 100


def test_the_batch_never_drains_between_shards_and_jobs(house: House) -> None:
    house.register(max_num_seqs=8, step_s=0.002)
    first = house.queue(chat_lines(40))
    second = house.queue(chat_lines(40))
    worker = house.worker()
    try:
        worker.serve()
        stats = worker.engine_stats
    finally:
        worker.leave()
    for job in (first, second):
        house.finalize(job.id)
        assert house.job(job.id).state is JobState.COMPLETED
    # 80 requests of 8 tokens, 8 at a time, is 80 steps; draining at each of 8 shards would add 8 x
    # 7.
    assert stats is not None
    assert stats.steps <= 100


def test_the_engine_stays_loaded_between_jobs_of_the_same_engine(house: House) -> None:
    house.register()
    worker = house.worker()
    try:
        made = []
        for _ in range(2):
            job = house.queue(chat_lines(5))
            worker.serve()
            house.finalize(job.id)
            with house.database.unit_of_work() as tx:
                made += devices.sessions_of_job(tx, job.id)
    finally:
        worker.leave()
    assert len({session.id for session in made}) == 1


def test_a_second_worker_for_a_device_is_refused(house: House) -> None:
    worker = house.worker()
    try:
        with pytest.raises(Conflict, match="served by another worker"):
            house.worker()
    finally:
        worker.leave()
    house.worker().leave()


def test_cancel_keeps_what_is_finished_and_accounts_for_the_rest(house: House) -> None:
    house.register(max_num_seqs=4, step_s=0.01)
    job = house.queue(chat_lines(100))
    worker = house.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    try:
        until(lambda: house.job(job.id).counts.completed)
        cancel.cancel(house.database, house.bells, job.id, PROJECT)
        serving.join(30)
    finally:
        worker.leave()
    house.finalize(job.id)
    job = house.job(job.id)
    assert job.state is JobState.CANCELLED
    assert 0 < job.counts.completed < 100
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(100))
    assert set(house.codes(job.id).values()) == {"batch_cancelled"}


def test_a_stop_gives_unfinished_shards_back_at_once(house: House) -> None:
    house.register(max_num_seqs=4, step_s=0.01)
    job = house.queue(chat_lines(200, max_tokens=64))
    worker = house.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    until(lambda: house.job(job.id).state is JobState.RUNNING)
    worker.leave()
    serving.join(30)
    with house.database.unit_of_work() as tx:
        assert shards.leased_of(tx, job.id) == 0
        assert jobs.states(tx, [job.id])[job.id] is JobState.RUNNING


def test_an_engine_that_cannot_load_ends_its_lines_with_the_reason(
    house: House, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODELS / "orders-qwen3-1m", model)
    house.register(path=str(model))
    shutil.rmtree(model)
    job = house.run(chat_lines(4))
    assert job.state is JobState.COMPLETED
    assert set(house.codes(job.id).values()) == {"engine_load_failed"}
    assert job.all_failed


def test_a_worker_that_cannot_load_an_engine_leaves_its_work_to_one_that_can(house: House) -> None:
    model = str(MODELS / "orders-qwen3-1m-ov")
    house.register("orders", engine="openvino", path=model)
    job = house.queue(chat_lines(12, model="orders"))
    broken, sound = house.worker("GPU.7"), house.worker("CPU")
    try:
        broken.serve()
        assert house.job(job.id).counts.failed == 0
        sound.serve()
    finally:
        broken.leave()
        sound.leave()
    house.finalize(job.id)
    assert house.job(job.id).counts.completed == 12


def test_where_no_worker_can_load_an_engine_the_lines_end_with_the_reason(house: House) -> None:
    model = str(MODELS / "orders-qwen3-1m-ov")
    house.register("orders", engine="openvino", path=model)
    job = house.queue(chat_lines(3, model="orders"))
    workers = [house.worker("GPU.7"), house.worker("GPU.8")]
    try:
        for worker in [*workers, workers[0]]:
            worker.serve()
    finally:
        for worker in workers:
            worker.leave()
    house.finalize(job.id)
    assert set(house.codes(job.id).values()) == {"engine_load_failed"}


def test_a_lone_surrogate_in_a_custom_id_keeps_no_job_from_its_end(house: House) -> None:
    house.register()
    head = b'{"custom_id":"odd\\ud83d","method":"POST","url":"/v1/chat/completions",'
    body = b'"body":{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"x"}]}}'
    job = house.run(head + body)
    assert job.state is JobState.COMPLETED
    assert [r["custom_id"] for r in house.outputs(job.id)] == ["odd\ud83d"]


def test_a_recycled_host_loses_nothing(house: House) -> None:
    house.register(max_num_seqs=8, max_requests_per_process=30)
    job = house.run(chat_lines(100))
    assert job.counts.completed == 100
    with house.database.unit_of_work() as tx:
        assert len(devices.sessions_of_job(tx, job.id)) >= 3


def test_failed_lines_run_again_and_the_others_stay(house: House) -> None:
    house.register(rules=[{"contains": "say 3.", "action": "fail"}])
    job = house.run([*chat_lines(6), chat_line("bad", "x", temperature=-1)])
    assert set(house.codes(job.id)) == {"r3", "bad"}
    before = house.outputs(job.id)
    retry.retry(house.database, house.bells, job.id, PROJECT)
    assert house.job(job.id).counts.completed == 5
    worker = house.worker()
    try:
        worker.serve()
    finally:
        worker.leave()
    house.finalize(job.id)
    again = house.job(job.id)
    assert again.state is JobState.COMPLETED
    assert house.outputs(job.id) == before
    assert set(house.codes(job.id)) == {"r3", "bad"}


def test_a_late_answer_to_what_was_withdrawn_is_none_of_the_next_jobs(house: House) -> None:
    house.register()
    context = Context(house.settings, house.database, house.store, house.bells, SystemClock())
    record = DeviceRecord(context, "CPU", "default")
    record.take()
    resident = Resident(context, record.id, "CPU")

    def serve() -> JobId:
        job = house.queue(chat_lines(1))
        with house.database.unit_of_work() as tx:
            claimed = shards.claim(
                tx, pool="default", device="CPU", holder=record.id, lease_s=60, loaded=None
            )
        assert claimed is not None
        if not resident.loaded:
            resident.load(SimulatedSpec(), claimed.engine_fingerprint, lambda: None)
        Session(context, resident, record, Stop()).run(claimed)
        house.finalize(job.id)
        return job.id

    try:
        jobs_done = [serve()]
        engine = resident.client
        assert engine is not None
        # As if the first job had been cancelled while its answer was on the way.
        steps = engine.steps()
        engine.submit([EngineRequest(1, [7] * 40, SamplingParams(max_tokens=3))])
        until(lambda: engine.steps() > steps and not engine.breadcrumbs().live)
        jobs_done.append(serve())
    finally:
        resident.unload("over")
        record.leave()
    for job_id in jobs_done:
        (answer,) = house.outputs(job_id)
        assert answer["response"]["body"]["usage"]["completion_tokens"] == 8
