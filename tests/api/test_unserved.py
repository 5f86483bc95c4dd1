"""Jobs that wait for a worker which is not there say so, and stop saying so when it comes."""

from typing import Any

import httpx
import pytest

from batchgen.services import models
from tests.house import House, chat_lines


def told(user: httpx.Client, job_id: str) -> list[str]:
    """The codes of the job's warnings, which are the same in the list of jobs."""
    shown: list[dict[str, Any]] = user.get(f"/v1/jobs/{job_id}").json()["warnings"]
    (listed,) = (job for job in user.get("/v1/jobs").json()["data"] if job["id"] == job_id)
    assert listed["warnings"] == shown
    return [warning["code"] for warning in shown]


def test_a_job_of_a_pool_without_workers_says_so_until_one_comes(
    user: httpx.Client, house: House
) -> None:
    body = {"input_file_id": house.upload(b'{"custom_id": "a"}'), "model": "sim"}
    made = user.post("/v1/jobs", json=body).json()
    assert [warning["code"] for warning in made["warnings"]] == ["no_worker_in_pool"]
    assert "--pool default" in made["warnings"][0]["message"]
    job = house.queue(chat_lines(1))
    assert told(user, job.id) == ["no_worker_in_pool"]
    worker = house.worker()
    assert told(user, job.id) == []
    worker.leave()
    assert told(user, job.id) == ["no_worker_in_pool"]


def test_a_job_bound_to_a_device_that_nobody_serves_says_so(
    user: httpx.Client, house: House
) -> None:
    models.register(
        house.database,
        house.settings,
        name="bound",
        spec={"engine": "simulated"},
        device="GPU.7",
    )
    job = house.queue(chat_lines(1, model="bound"))
    other = house.worker("GPU.8")
    try:
        (warning,) = user.get(f"/v1/jobs/{job.id}").json()["warnings"]
        assert warning["code"] == "no_worker_of_device"
        assert "--device GPU.7" in warning["message"]
        assert "served: GPU.8" in warning["message"]
        own = house.worker("GPU.7")
        assert told(user, job.id) == []
        own.leave()
    finally:
        other.leave()


def test_a_worker_not_heard_of_for_a_lease_is_gone(user: httpx.Client, house: House) -> None:
    job = house.queue(chat_lines(1))
    worker = house.worker()
    with house.database.unit_of_work() as tx:
        tx.exec_driver_sql("UPDATE devices SET heartbeat_at = now() - interval '1 hour'")
    assert told(user, job.id) == ["no_worker_in_pool"]
    worker.idle()
    assert told(user, job.id) == []
    worker.leave()


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_what_nobody_wants_to_run_waits_for_nobody(
    user: httpx.Client, house: House, action: str
) -> None:
    job = house.queue(chat_lines(1))
    assert user.post(f"/v1/jobs/{job.id}/{action}").json()["warnings"] == []
    assert told(user, job.id) == []
