"""Checks of models over REST: asked for by whoever may run a job, looked at until they end."""

import httpx
import pytest
from sqlalchemy import text

from tests.house import House


def test_a_check_is_asked_for_run_by_a_worker_and_looked_at(
    user: httpx.Client, house: House
) -> None:
    asked = user.post("/v1/models/sim/checks", json={"prompt": "say it", "max_tokens": 3})
    assert asked.status_code == 200, asked.text
    check = asked.json()
    assert (check["object"], check["state"], check["model"]) == ("model.check", "waiting", "sim")
    worker = house.worker()
    try:
        worker.serve()
    finally:
        worker.leave()
    ended = user.get(f"/v1/models/sim/checks/{check['id']}").json()
    assert ended["state"] == "passed"
    assert ended["report"]["generation"]["output_tokens"] == 3
    assert ended["report"]["applied"]["engine"] == "simulated"
    assert ended["ended_at"] >= ended["created_at"]


def test_a_model_whose_name_holds_slashes_can_be_checked(user: httpx.Client, house: House) -> None:
    house.register("org/model")
    check = user.post("/v1/models/org/model/checks", json={}).json()
    assert check["model"] == "org/model"
    assert user.get(f"/v1/models/org/model/checks/{check['id']}").json()["id"] == check["id"]
    assert user.get(f"/v1/models/sim/checks/{check['id']}").status_code == 404
    assert user.get("/v1/models/org/model").json()["id"] == "org/model"


def test_a_check_of_settings_that_cannot_work_is_refused_with_the_reason(
    user: httpx.Client, house: House
) -> None:
    with house.database.unit_of_work() as tx:
        tx.execute(text("""UPDATE models SET spec = spec || '{"max_num_seqs": 0}'"""))
    refused = user.post("/v1/models/sim/checks", json={})
    assert refused.status_code == 400
    assert "max_num_seqs" in refused.json()["error"]["message"]


def test_a_check_belongs_to_its_project(
    user: httpx.Client, other: httpx.Client, house: House
) -> None:
    check = user.post("/v1/models/sim/checks", json={}).json()
    assert other.get(f"/v1/models/sim/checks/{check['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"max_tokens": 0}, 400),
        ({"wait_s": 0}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": "\0"}, 400),
        ({"max_token": 3}, 422),
        ({"device": 3}, 400),
    ],
)
def test_a_check_that_cannot_be_is_refused(
    user: httpx.Client, house: House, body: dict[str, object], status: int
) -> None:
    assert user.post("/v1/models/sim/checks", json=body).status_code == status


def test_nothing_that_is_no_check_is_found(user: httpx.Client, house: House) -> None:
    for strange in ("check_x", f"check_{0:024}", "..%2f", "%00"):
        assert user.get(f"/v1/models/sim/checks/{strange}").status_code == 404
    assert user.post("/v1/models/nobody/checks", json={}).status_code == 404
