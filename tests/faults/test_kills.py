"""kill -9 of anything in mid-job, and worse: every line still ends exactly once."""

import os
import signal

import psutil
import pytest
import redis
from sqlalchemy import create_engine, text

from tests.faults.conftest import LEASE_S, LiveStack
from tests.waiting import until

N = 600


@pytest.mark.parametrize("part", ["engine", "device-cpu", "control", "api", "valkey", "postgres"])
def test_sigkill_in_mid_job_loses_and_doubles_nothing(stack: LiveStack, part: str) -> None:
    job_id = stack.start_job(N)
    before = stack.pid(part)
    os.kill(before, signal.SIGKILL)
    job = stack.ended(job_id)
    assert job["state"] == "completed"
    assert job["counts"]["failed"] == 0
    stack.assert_every_line_once(job_id, N)
    assert stack.pid(part) != before


def test_a_flushed_broker_changes_nothing_but_latency(stack: LiveStack) -> None:
    job_id = stack.start_job(N)
    socket = stack.state()["broker_url"].removeprefix("redis+socket://")
    with redis.Redis(unix_socket_path=socket) as broker:
        broker.flushall()
    assert stack.ended(job_id)["state"] == "completed"
    stack.assert_every_line_once(job_id, N)


def test_a_worker_frozen_beyond_its_lease_changes_nothing_when_it_wakes(stack: LiveStack) -> None:
    job_id = stack.start_job(N)
    worker = psutil.Process(stack.pid("device-cpu"))
    worker.suspend()
    try:
        done = stack.job(job_id)["counts"]["completed"]
        until(lambda: not _leases(stack, job_id), timeout_s=LEASE_S * 5)
        assert stack.job(job_id)["counts"]["completed"] == done
    finally:
        worker.resume()
    assert stack.ended(job_id)["state"] == "completed"
    stack.assert_every_line_once(job_id, N)


def test_sigterm_of_a_worker_gives_its_shards_back_and_another_goes_on(stack: LiveStack) -> None:
    job_id = stack.start_job(N)
    before = stack.pid("device-cpu")
    os.kill(before, signal.SIGTERM)
    assert stack.ended(job_id)["state"] == "completed"
    stack.assert_every_line_once(job_id, N)
    assert stack.pid("device-cpu") != before


def test_a_frozen_engine_is_replaced_and_costs_no_line(stack: LiveStack) -> None:
    job_id = stack.start_job(N)
    os.kill(stack.pid("engine"), signal.SIGSTOP)
    assert stack.ended(job_id)["state"] == "completed"
    stack.assert_every_line_once(job_id, N)


def test_a_cancel_in_mid_job_accounts_for_every_line(stack: LiveStack) -> None:
    job_id = stack.start_job(N)
    stack.client.act(job_id, "cancel")
    job = stack.ended(job_id)
    assert job["state"] == "cancelled"
    assert 0 < job["counts"]["completed"] < N
    stack.assert_every_line_once(job_id, N)


def _leases(stack: LiveStack, job_id: str) -> int:
    engine = create_engine(stack.state()["database_url"])
    try:
        with engine.connect() as connection:
            query = text("SELECT count(*) FROM shards WHERE job_id = :j AND state = 'leased'")
            return int(connection.execute(query, {"j": job_id}).scalar_one())
    finally:
        engine.dispose()
