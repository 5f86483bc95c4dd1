"""Native jobs: created once, listed, and moved only as the table of states allows."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from batchgen.domain.states import JobEvent, JobState
from batchgen.storage import jobs
from tests.api.hand import Hand
from tests.house import House, chat_lines, jsonl


@pytest.fixture
def body(house: House) -> dict[str, Any]:
    return {"input_file_id": house.upload(jsonl(chat_lines(3))), "model": "sim"}


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


def test_a_job_says_all_of_itself(user: httpx.Client, body: dict[str, Any]) -> None:
    asked = body | {
        "priority": 7,
        "metadata": {"a": "b"},
        "engine": {"max_num_seqs": 4},
        "completion_window": "2h",
        "ordering": "input",
    }
    job = user.post("/v1/jobs", json=asked).json()
    assert (job["object"], job["kind"], job["state"]) == ("job", "generation", "validating")
    assert (job["status"], job["priority"], job["metadata"]) == ("validating", 7, {"a": "b"})
    assert (job["engine"], job["all_failed"], job["faults"]) == ({"max_num_seqs": 4}, False, [])
    assert job["counts"] == {"total": 0, "completed": 0, "failed": 0, "open": 0}
    assert job["expires_at"] == job["created_at"] + 7_200
    assert job["ordering"] == "input"
    assert user.get(f"/v1/jobs/{job['id']}").json() == job
    assert user.get(f"/v1/batches/{job['id']}").json()["id"] == job["id"]


def test_lines_are_put_in_order_unless_the_job_forbids_it(
    user: httpx.Client, body: dict[str, Any]
) -> None:
    plain = user.post("/v1/jobs", json=body, headers=keyed("k")).json()
    assert plain["ordering"] == "prefix"
    assert user.get(f"/v1/jobs/{plain['id']}/manifest").json()["ordering"] == "prefix"
    asked = body | {"ordering": "input"}
    assert user.post("/v1/jobs", json=asked, headers=keyed("k")).status_code == 409
    assert user.post("/v1/jobs", json=body | {"ordering": "shuffled"}).status_code == 400


def test_fifty_at_once_with_one_key_make_one_job(user: httpx.Client, body: dict[str, Any]) -> None:
    def create(_: int) -> httpx.Response:
        return user.post("/v1/jobs", json=body, headers=keyed("once"))

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(create, range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(user.get("/v1/jobs").json()["data"]) == 1


def test_a_key_with_another_body_is_a_conflict(user: httpx.Client, body: dict[str, Any]) -> None:
    assert user.post("/v1/jobs", json=body, headers=keyed("k")).status_code == 200
    refused = user.post("/v1/jobs", json=body | {"priority": 1}, headers=keyed("k"))
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_mismatch")
    assert user.post("/v1/jobs", json=body, headers=keyed("k2")).status_code == 200


def test_batches_have_idempotency_keys_too(user: httpx.Client, body: dict[str, Any]) -> None:
    batch = {
        "input_file_id": body["input_file_id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    ids = {user.post("/v1/batches", json=batch, headers=keyed("k")).json()["id"] for _ in "ab"}
    assert len(ids) == 1


def test_an_idempotency_key_is_its_projects_own(
    user: httpx.Client, other: httpx.Client, body: dict[str, Any]
) -> None:
    made = user.post("/v1/jobs", json=body, headers=keyed("k")).json()
    data = jsonl(chat_lines(1))
    file = other.post("/v1/files", files={"file": ("a", data)}, data={"purpose": "batch"}).json()
    theirs = other.post("/v1/jobs", json={"input_file_id": file["id"]}, headers=keyed("k"))
    assert theirs.status_code == 200
    assert theirs.json()["id"] != made["id"]


@pytest.mark.parametrize("key", ["", "a" * 256, "a b"])
def test_an_idempotency_key_has_a_form(user: httpx.Client, body: dict[str, Any], key: str) -> None:
    refused = user.post("/v1/jobs", json=body, headers=keyed(key))
    assert (refused.status_code, refused.json()["param"]) == (400, "Idempotency-Key")


def test_lists_are_filtered_and_paged(user: httpx.Client, house: House, hand: Hand) -> None:
    house.register("second")
    done = house.queue(chat_lines(2))
    hand.work_off(done.id)
    waiting = [house.queue(chat_lines(2, model="second")).id for _ in range(3)]

    def listed(**query: Any) -> list[str]:
        return [job["id"] for job in user.get("/v1/jobs", params=query).json()["data"]]

    assert listed(state="completed") == [done.id]
    assert listed(state="completed,queued") == [*waiting[::-1], done.id]
    assert listed(model="second") == waiting[::-1]
    assert listed(model="none") == []
    page = user.get("/v1/jobs", params={"limit": 2, "model": "second"}).json()
    assert (page["object"], page["has_more"]) == ("list", True)
    assert (page["first_id"], page["last_id"]) == (waiting[2], waiting[1])
    rest = user.get("/v1/jobs", params={"after": page["last_id"], "model": "second"}).json()
    assert (rest["has_more"], [job["id"] for job in rest["data"]]) == (False, [waiting[0]])


def test_cancel_is_answered_as_documented_in_every_state(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    answers: dict[JobState, tuple[int, str]] = {}

    def cancel(job_id: str) -> None:
        before = house.job(job_id).state  # type: ignore[arg-type]
        answer = user.post(f"/v1/jobs/{job_id}/cancel")
        answers[before] = (answer.status_code, answer.json().get("state", "refused"))
        again = user.post(f"/v1/jobs/{job_id}/cancel")
        assert again.status_code == answer.status_code

    def fresh() -> str:
        return house.queue(chat_lines(2)).id

    cancel(house.submit(chat_lines(2)).id)
    cancel(fresh())
    paused = fresh()
    user.post(f"/v1/jobs/{paused}/pause")
    cancel(paused)
    done = house.queue(chat_lines(2))
    shard = hand.claim()
    assert shard.job_id == done.id
    hand.finish(shard)
    with house.database.unit_of_work() as tx:
        jobs.advance(tx, done.id, JobEvent.WORKED_OFF)
    cancel(done.id)
    house.finalize(done.id)
    cancel(done.id)
    cancel(house.queue(b"no json\n").id)
    running = house.queue(chat_lines(2))
    assert hand.claim().job_id == running.id
    cancel(running.id)
    expiring = house.queue(chat_lines(2))
    with house.database.unit_of_work() as tx:
        jobs.advance(tx, expiring.id, JobEvent.EXPIRE)
    cancel(expiring.id)
    house.finalize(expiring.id)
    cancel(expiring.id)
    cancelled = house.queue(chat_lines(2))
    user.post(f"/v1/jobs/{cancelled.id}/cancel")
    cancel(cancelled.id)
    house.finalize(cancelled.id)
    cancel(cancelled.id)
    assert answers == {
        JobState.VALIDATING: (200, "cancelling"),
        JobState.QUEUED: (200, "cancelling"),
        JobState.RUNNING: (200, "cancelling"),
        JobState.PAUSED: (200, "cancelling"),
        JobState.CANCELLING: (200, "cancelling"),
        JobState.CANCELLED: (200, "cancelled"),
        JobState.FINALIZING: (200, "finalizing"),
        JobState.EXPIRING: (200, "expiring"),
        JobState.COMPLETED: (409, "refused"),
        JobState.FAILED: (409, "refused"),
        JobState.EXPIRED: (409, "refused"),
    }
    assert set(answers) == set(JobState)


def test_a_paused_job_goes_on_when_it_is_resumed(user: httpx.Client, house: House) -> None:
    route = f"/v1/jobs/{house.queue(chat_lines(2)).id}"
    paused = user.post(f"{route}/pause").json()
    assert (paused["state"], paused["status"]) == ("paused", "in_progress")
    assert paused["paused_at"] is not None
    assert user.post(f"{route}/pause").status_code == 409
    resumed = user.post(f"{route}/resume").json()
    assert (resumed["state"], resumed["paused_at"]) == ("queued", None)
    assert user.post(f"{route}/resume").status_code == 409


def test_a_retry_opens_the_failed_lines_only(user: httpx.Client, house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(6))
    route = f"/v1/jobs/{job.id}"
    assert user.post(f"{route}/retry").status_code == 409
    hand.work_off(job.id, failed=[1, 4])
    again = user.post(f"{route}/retry").json()
    assert (again["state"], again["output_file_id"], again["error_file_id"]) == (
        "queued",
        None,
        None,
    )
    assert again["counts"] == {"total": 6, "completed": 4, "failed": 0, "open": 2}
    hand.work_off(job.id)
    assert user.get(route).json()["counts"]["completed"] == 6
    refused = user.post(f"{route}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_retry")


def test_without_its_input_a_job_cannot_run_again(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(3))
    hand.work_off(job.id, failed=[1])
    user.delete(f"/v1/files/{job.input_file_id}")
    refused = user.post(f"/v1/jobs/{job.id}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "input_deleted")
    assert user.get(f"/v1/jobs/{job.id}/results").text.count("\n") == 2


def test_the_priority_can_be_changed_while_it_decides(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(2))
    route = f"/v1/jobs/{job.id}"
    assert user.patch(route, json={"priority": -5}).json()["priority"] == -5
    assert user.patch(route, json={"priority": 1_001}).status_code == 400
    assert user.patch(route, json={"state": "completed"}).status_code == 422
    hand.work_off(job.id)
    assert user.patch(route, json={"priority": 1}).status_code == 409


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"endpoint": "/v1/unknown"}, 400, "unsupported_endpoint"),
        ({"model": "unknown"}, 404, "model_not_found"),
        ({"completion_window": "24"}, 400, "invalid_value"),
        ({"input_file_id": "file-" + "0" * 24}, 404, "not_found"),
    ],
)
def test_a_job_that_cannot_be_is_refused_at_once(
    user: httpx.Client, body: dict[str, Any], change: dict[str, Any], status: int, code: str
) -> None:
    refused = user.post("/v1/jobs", json=body | change)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert user.get("/v1/jobs").json()["data"] == []


def test_a_jobs_result_is_no_input(user: httpx.Client, house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(2))
    hand.work_off(job.id)
    output = house.job(job.id).output_file_id
    refused = user.post("/v1/jobs", json={"input_file_id": output})
    assert (refused.status_code, refused.json()["param"]) == (400, "input_file_id")


def test_devices_are_shown_with_the_age_of_their_heartbeat(
    admin: httpx.Client, house: House
) -> None:
    worker = house.worker()
    worker.leave()
    with house.database.unit_of_work() as tx:
        tx.execute(text("UPDATE devices SET heartbeat_at = now() - interval '90 seconds'"))
    devices = admin.get("/v1/devices").json()["data"]
    assert [(d["object"], d["device"], d["pool"]) for d in devices] == [
        ("device", "CPU", "default")
    ]
    assert 90 <= devices[0]["heartbeat_age_s"] < 120


def test_models_are_registered_in_revisions_and_retired(admin: httpx.Client) -> None:
    spec = {"engine": "simulated", "step_s": 0.5}
    first = admin.post("/v1/models", json={"name": "m", "spec": spec}).json()
    assert (first["id"], first["revision"], first["engine"]) == ("m", 1, "simulated")
    assert first["spec"]["step_s"] == 0.5
    assert admin.post("/v1/models", json={"name": "m", "spec": spec}).json() == first
    second = admin.post("/v1/models", json={"name": "m", "spec": spec | {"step_s": 1.0}}).json()
    assert (second["revision"], second["fingerprint"] != first["fingerprint"]) == (2, True)
    assert admin.get("/v1/models/m").json() == second
    assert admin.delete("/v1/models/m").json() == {"id": "m", "object": "model", "deleted": True}
    assert admin.get("/v1/models/m").status_code == 404
    assert admin.delete("/v1/models/m").status_code == 404
