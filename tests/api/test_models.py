"""Models over REST: one, or the whole fleet as it is declared."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.house import MODELS, House

OPENVINO = {"path": str(MODELS / "orders-qwen3-2m-ov")}
SIM: dict[str, Any] = {"engine": "simulated"}

pytestmark = pytest.mark.usefixtures("house")


def put(admin: httpx.Client, models: dict[str, Any], **more: Any) -> httpx.Response:
    return admin.put("/v1/models", json={"models": models, **more})


def deeds(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 200, answer.text
    return {step["model"]: step["deed"] for step in answer.json()["data"]}


def names(client: httpx.Client) -> set[str]:
    return {model["id"] for model in client.get("/v1/models").json()["data"]}


def test_a_fleet_is_declared_and_declaring_it_again_changes_nothing(admin: httpx.Client) -> None:
    fleet = {"a": {**SIM, "max_num_seqs": 4}, "b": {**OPENVINO, "device": "CPU", "pool": "big"}}
    assert deeds(put(admin, fleet)) == {"a": "add", "b": "add"}
    assert deeds(put(admin, fleet)) == {"a": "keep", "b": "keep"}
    made = admin.get("/v1/models/b").json()
    assert (made["engine"], made["pool"], made["device"]) == ("openvino", "big", "CPU")
    assert made["content_hash"]
    assert any("no worker of pool 'big' is live" in text for text in made["warnings"])


def test_a_dry_run_says_what_would_change_and_changes_nothing(admin: httpx.Client) -> None:
    put(admin, {"a": {**SIM, "max_num_seqs": 4}})
    fleet = {"a": {**SIM, "max_num_seqs": 8, "pool": "p"}, "b": {**SIM, "step_s": 0.5}}
    answer = put(admin, fleet, prune=True, dry_run=True)
    assert deeds(answer) == {"a": "change", "b": "add", "sim": "retire"}
    assert answer.json()["applied"] is False
    changed, added, retired = answer.json()["data"]
    assert changed["changes"] == [
        {"setting": "max_num_seqs", "before": 4, "after": 8},
        {"setting": "pool", "before": "default", "after": "p"},
    ]
    assert changed["revision"] == 1
    assert {"setting": "step_s", "before": None, "after": 0.5} in added["changes"]
    assert added["revision"] is None
    assert retired["changes"] == []
    assert names(admin) == {"a", "sim"}
    assert deeds(put(admin, fleet, prune=True)) == {"a": "change", "b": "add", "sim": "retire"}
    assert names(admin) == {"a", "b"}
    assert admin.get("/v1/models/a").json()["revision"] == 2


def test_without_prune_other_models_stay(admin: httpx.Client) -> None:
    assert deeds(put(admin, {"a": SIM})) == {"a": "add"}
    assert names(admin) == {"a", "sim"}


def test_one_bad_entry_and_nothing_is_applied(admin: httpx.Client) -> None:
    fleet = {
        "good": SIM,
        "bad1": {**SIM, "max_num_seq": 4},
        "bad2": {**OPENVINO, "scheduler_config": {"max_num_seqs": "many"}},
        "bad3": {"path": "/nowhere"},
        "bad4": {**OPENVINO, "scheduler_config": {"num_kv_blocks": 9, "cache_size": 1}},
        "bad5": {**OPENVINO, "device": "GPU0"},
    }
    answer = put(admin, fleet, prune=True)
    assert answer.status_code == 400
    error = answer.json()["error"]
    places = [line.split(": ")[0] for line in error["message"].splitlines()]
    assert places == [
        "models.bad1.max_num_seq",
        "models.bad2.scheduler_config.max_num_seqs",
        "models.bad3.path",
        "models.bad4",
        "models.bad5.device",
    ]
    assert error["param"] == places[0]
    assert names(admin) == {"sim"}


def test_changed_files_are_a_change(admin: httpx.Client, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(OPENVINO["path"], tmp_path / "m"))
    put(admin, {"m": {"path": str(directory)}})
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    answer = put(admin, {"m": {"path": str(directory)}}, dry_run=True)
    (step,) = answer.json()["data"]
    (change,) = step["changes"]
    assert (step["deed"], change["setting"]) == ("change", "content_hash")
    assert change["before"] != change["after"]


def test_only_an_admin_declares_and_only_what_is_known(
    admin: httpx.Client, user: httpx.Client
) -> None:
    assert put(user, {"a": SIM}).status_code == 403
    assert put(admin, {"a": SIM}, prun=True).status_code == 422
    assert put(admin, {"a": {**SIM, "pool": 3}}).status_code == 400
    assert put(admin, {"a b": SIM}).status_code == 400
    assert names(admin) == {"sim"}


def test_a_job_overrides_engine_settings_and_is_refused_with_the_mend(
    admin: httpx.Client, user: httpx.Client, house: House
) -> None:
    put(admin, {"ov": {**OPENVINO, "scheduler_config": {"num_kv_blocks": 100}}})
    body = {"input_file_id": house.upload(b'{"custom_id": "a"}\n'), "model": "ov"}
    for engine, word in (
        ({"scheduler_config": {"cache_size": 1}}, "num_kv_blocks and cache_size"),
        ({"scheduler_config": {"max_num_seq": 1}}, "did you mean 'max_num_seqs'"),
        ({"path": "/etc"}, "register a model for that"),
    ):
        refused = user.post("/v1/jobs", json={**body, "engine": engine})
        assert refused.status_code in (400, 422)
        assert word in refused.json()["detail"]
    accepted = user.post(
        "/v1/jobs", json={**body, "engine": {"scheduler_config": {"max_num_seqs": 2}}}
    )
    assert accepted.status_code < 300, accepted.text
