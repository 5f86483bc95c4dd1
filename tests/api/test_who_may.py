"""Who may do what: every route by every kind of key, every id by the key of another project."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from api.app import create_app
from batchgen.domain.errors import Conflict, NotAuthenticated
from batchgen.domain.ids import KeyId, Project
from batchgen.domain.jobs import Scope
from batchgen.domain.states import JobState
from batchgen.services import keys
from batchgen.settings import Settings
from batchgen.storage.session import Database
from tests.api.conftest import Connect
from tests.api.hand import Hand
from tests.house import House, chat_lines, jsonl

OPEN = {("GET", "/healthz"), ("GET", "/readyz")}
ADMINS = {
    ("GET", "/metrics"),
    ("GET", "/v1/caches"),
    ("POST", "/v1/caches/prune"),
    ("GET", "/v1/devices"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("DELETE", "/v1/keys/{key_id}"),
    ("POST", "/v1/models"),
    ("PUT", "/v1/models"),
    ("DELETE", "/v1/models/{name}"),
}


def routes() -> Iterator[tuple[str, str]]:
    """Every documented route: none can be added and left out of these tests."""
    for path, operations in create_app(Settings(database_url="")).openapi()["paths"].items():
        for method in operations:
            yield method.upper(), path


ROUTES = sorted(routes())


def call(client: httpx.Client, method: str, path: str, **ids: str) -> httpx.Response:
    blank = {"job_id": f"batch_{0:024}", "file_id": f"file-{0:024}", "key_id": f"{0:012}"}
    values = blank | {"batch_id": f"batch_{0:024}", "name": "sim"}
    values |= {"check_id": f"check_{0:024}"} | ids
    body: dict[str, Any] = {}
    if method in {"POST", "PATCH"} and path != "/v1/files":
        body = {"json": {"priority": 1} if method == "PATCH" else {}}
    return client.request(method, path.format(**values), **body)


def test_without_a_key_nothing_but_health_is_open(connect: Connect) -> None:
    nobody = connect("")
    for method, path in ROUTES:
        answer = call(nobody, method, path)
        if (method, path) in OPEN:
            assert answer.status_code == 200, path
        else:
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "invalid_api_key" in answer.text


def test_the_admin_routes_need_the_admin_scope(
    user: httpx.Client, admin: httpx.Client, house: House
) -> None:
    for method, path in ROUTES:
        answer = call(user, method, path)
        assert (answer.status_code == 403) == ((method, path) in ADMINS), (method, path)
        assert answer.status_code < 500
    for method, path in sorted(ADMINS):
        assert call(admin, method, path).status_code not in {401, 403}, (method, path)


def test_an_admin_may_do_what_a_user_may(admin: httpx.Client, house: House) -> None:
    made = admin.post(
        "/v1/files", files={"file": ("a", jsonl(chat_lines(1)))}, data={"purpose": "batch"}
    )
    assert admin.post("/v1/jobs", json={"input_file_id": made.json()["id"]}).status_code == 200


def test_the_ids_of_another_project_are_not_there(
    other: httpx.Client, house: House, hand: Hand
) -> None:
    ended, running = house.queue(chat_lines(3)), house.queue(chat_lines(3))
    hand.work_off(ended.id, failed=[0])
    ended = house.job(ended.id)
    files = {ended.input_file_id, ended.output_file_id, ended.error_file_id}
    asked = [
        (method, path, {"job_id": job.id, "batch_id": job.id, "file_id": str(file_id)})
        for method, path in ROUTES
        if re.search(r"\{(job|batch|file)_id\}", path)
        for job in (ended, running)
        for file_id in files
    ]
    for method, path, ids in asked:
        answer = call(other, method, path, **ids)
        assert answer.status_code == 404, (method, path)
        assert "r0" not in answer.text and "said" not in answer.text
    assert house.job(ended.id) == ended
    assert house.job(running.id).state is JobState.QUEUED
    assert house.job(running.id).priority == 0


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches", "/v1/files"])
def test_lists_hold_nothing_of_another_project(
    user: httpx.Client, other: httpx.Client, house: House, hand: Hand, path: str
) -> None:
    job = house.queue(chat_lines(3))
    hand.work_off(job.id)
    assert user.get(path).json()["data"]
    assert other.get(path).json()["data"] == []
    mine = job.input_file_id if path == "/v1/files" else job.id
    assert other.get(path, params={"after": mine}).status_code == 404


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches"])
def test_the_file_of_another_project_is_no_input(
    other: httpx.Client, house: House, path: str
) -> None:
    file_id = house.upload(jsonl(chat_lines(1)))
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    assert other.post(path, json=body).status_code == 404
    assert other.get(path).json()["data"] == []


def test_what_is_no_id_is_not_found(user: httpx.Client) -> None:
    strange = (
        "..%2f..%2fetc%2fpasswd",
        "uploads%2fx",
        "%00",
        "batch_x",
        "file-%27--",
        "☃",
        "a" * 900,
    )
    for path in ("/v1/jobs/{}", "/v1/batches/{}", "/v1/files/{}/content"):
        for value in strange:
            assert user.get(path.format(value)).status_code == 404, (path, value)


def test_what_is_no_key_opens_nothing(connect: Connect) -> None:
    unknown = "bg_000000000000_" + "0" * 48
    for presented in ("bg_", unknown, "sk-abc", "bg_%00_x", "Bearer", "a" * 5_000):
        assert connect(presented).get("/v1/jobs").status_code == 401


def test_the_right_id_with_a_wrong_secret_opens_nothing(database: Database, user_key: str) -> None:
    wrong = user_key[:-1] + ("0" if user_key[-1] != "0" else "1")
    with pytest.raises(NotAuthenticated):
        keys.authenticate(database, wrong)
    assert keys.authenticate(database, user_key).scope is Scope.USER


def test_a_revoked_key_opens_nothing_at_once(
    admin: httpx.Client, user: httpx.Client, user_key: str
) -> None:
    assert user.get("/v1/jobs").status_code == 200
    assert admin.delete(f"/v1/keys/{user_key.split('_')[1]}").json()["deleted"]
    assert user.get("/v1/jobs").status_code == 401


def test_an_expired_key_opens_nothing(database: Database) -> None:
    key, secret = keys.create(database, name="k", scope=Scope.USER, expires_after_s=60)
    assert keys.authenticate(database, secret).id == key.id
    with database.unit_of_work() as tx:
        tx.execute(text("UPDATE keys SET expires_at = now() - interval '1 second'"))
    with pytest.raises(NotAuthenticated):
        keys.authenticate(database, secret)


def test_two_keys_of_a_project_live_side_by_side(admin: httpx.Client, house: House) -> None:
    made = [
        admin.post("/v1/keys", json={"name": f"k{i}", "project": "team"}).json() for i in range(2)
    ]
    for key in made:
        headers = {"Authorization": f"Bearer {key['secret']}"}
        assert admin.get("/v1/jobs", headers=headers).status_code == 200
    assert {key["project"] for key in made} == {"team"}


def test_the_use_of_a_key_is_noted(admin: httpx.Client, user: httpx.Client, user_key: str) -> None:
    user.get("/v1/jobs")
    found = {key["id"]: key for key in admin.get("/v1/keys").json()["data"]}
    assert found[user_key.split("_")[1]]["last_used_at"] is not None


def test_the_last_admin_key_stays(database: Database) -> None:
    key, _ = keys.create(database, name="only", scope=Scope.ADMIN)
    keys.create(database, name="user", scope=Scope.USER)
    with pytest.raises(Conflict):
        keys.revoke(database, key.id)
    second, _ = keys.create(database, name="second", scope=Scope.ADMIN)
    keys.revoke(database, key.id)
    with pytest.raises(Conflict):
        keys.revoke(database, KeyId(second.id))


def test_the_first_key_is_made_once(database_url: str, database: Database) -> None:
    first = keys.ensure_first_key(database_url)
    assert first is not None
    assert keys.authenticate(database, first).scope is Scope.ADMIN
    assert keys.authenticate(database, first).project == Project("default")
    assert keys.ensure_first_key(database_url) is None


@pytest.mark.parametrize(
    "body",
    [
        {"name": "k", "scope": "root"},
        {"name": "", "scope": "user"},
        {"name": "k", "project": "../x"},
        {"name": "k", "expires_in_s": 0},
        {"name": "k", "expires_in_s": 10**12},
        {"name": "k\n"},
    ],
)
def test_a_key_that_cannot_be_is_refused(admin: httpx.Client, body: dict[str, Any]) -> None:
    assert admin.post("/v1/keys", json=body).status_code == 400


def test_a_secret_is_shown_once_and_kept_nowhere(admin: httpx.Client, database: Database) -> None:
    made = admin.post("/v1/keys", json={"name": "k"}).json()
    secret = made["secret"].rsplit("_", 1)[1]
    assert re.fullmatch(r"[0-9a-f]{48}", secret)
    assert "secret" in made and made["secret"].startswith(f"bg_{made['id']}_")
    assert secret not in admin.get("/v1/keys").text
    rows = everything(database)
    assert rows and not any(secret in row for row in rows)


def everything(database: Database) -> list[str]:
    """Every row of every table, as text."""
    with database.unit_of_work() as tx:
        found = tx.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
        tables = list(found.scalars())
        queries = [text(f'SELECT t::text FROM "{table}" t') for table in tables]
        return [row for query in queries for row in tx.execute(query).scalars()]
