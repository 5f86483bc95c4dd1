"""Bodies and queries from outside: refused with the place named, never echoed, never fatal."""

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.house import House, chat_lines, jsonl

CANARY = "canary-prompt-7f3a"


@pytest.fixture
def file_id(house: House) -> str:
    return house.upload(jsonl(chat_lines(1)))


def error_in(answer: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    return body.get("error", body)


@pytest.mark.parametrize(
    ("route", "body", "near"),
    [
        ("/v1/jobs", {"input_file": "x"}, "input_file_id"),
        ("/v1/jobs", {"prioritty": 1}, "priority"),
        ("/v1/batches", {"completionwindow": "24h"}, "completion_window"),
        ("/v1/keys", {"scop": "user"}, "scope"),
        ("/v1/models", {"nam": "m"}, "name"),
    ],
)
def test_an_unknown_field_gets_the_nearest_known_one(
    admin: httpx.Client, route: str, body: dict[str, Any], near: str
) -> None:
    refused = admin.post(route, json=body)
    error = error_in(refused)
    assert (refused.status_code, error["code"]) == (422, "unknown_option")
    assert error["param"] == next(iter(body))
    assert f"did you mean '{near}'?" in refused.text


def test_an_unknown_field_further_in_is_found_too(user: httpx.Client, file_id: str) -> None:
    body = {"input_file_id": file_id, "output_expires_after": {"anchor": "created_at", "second": 1}}
    refused = user.post("/v1/jobs", json=body)
    assert (refused.status_code, "did you mean 'seconds'?" in refused.text) == (422, True)


def test_an_unknown_engine_setting_is_found_too(user: httpx.Client, file_id: str) -> None:
    body = {"input_file_id": file_id, "model": "sim", "engine": {"max_num_seq": 4}}
    refused = user.post("/v1/jobs", json=body)
    assert (refused.status_code, "did you mean 'max_num_seqs'?" in refused.text) == (422, True)


@pytest.mark.parametrize("query", ["limt=3", "state=runing", "project=other"])
def test_an_unknown_query_is_refused(user: httpx.Client, query: str) -> None:
    refused = user.get(f"/v1/jobs?{query}")
    assert (refused.status_code, error_in(refused)["code"]) == (422, "unknown_option")


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/batches"])
def test_a_limit_out_of_bounds_is_refused(user: httpx.Client, route: str) -> None:
    for limit in ("0", "101", "-1", "ten", "", "99999999999999999999"):
        refused = user.get(f"{route}?limit={limit}")
        assert (refused.status_code, error_in(refused)["param"]) == (400, "limit"), limit


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/batches"])
def test_what_the_server_owns_cannot_be_set(user: httpx.Client, file_id: str, route: str) -> None:
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    owned = ("state", "project", "project_id", "output_key", "output_file_id", "input_key", "pool")
    for field in owned:
        assert user.post(route, json=body | {field: "completed"}).status_code == 422, field
    assert user.get(route).json()["data"] == []


def test_a_job_cannot_choose_paths(user: httpx.Client, file_id: str) -> None:
    for reserved in ("path", "cache_dir", "engine"):
        body = {"input_file_id": file_id, "model": "sim", "engine": {reserved: "/etc"}}
        assert user.post("/v1/jobs", json=body).status_code in {400, 422}, reserved


def test_a_model_path_that_is_none_is_refused(admin: httpx.Client) -> None:
    for path in ("/proc/self", "/etc", "../models", "relative", "/x\0y", "/none"):
        body = {"name": "m", "spec": {"engine": "openvino", "path": path}}
        assert admin.post("/v1/models", json=body).status_code == 400, path


@pytest.mark.parametrize("n", [900, 20_000])
@pytest.mark.parametrize("shape", ['{"a":', "["])
def test_deep_json_is_refused_and_the_server_lives(user: httpx.Client, n: int, shape: str) -> None:
    end = "}" if shape.startswith("{") else "]"
    headers = {"Content-Type": "application/json"}
    deep = shape * n + "1" + end * n
    for body in (deep, f'{{"engine": {deep}, "input_file_id": "x"}}'):
        refused = user.post("/v1/jobs", content=body, headers=headers)
        assert refused.status_code in {400, 422}
    assert user.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_huge_body_is_refused(user: httpx.Client, declared: bool) -> None:
    body = b'{"input_file_id": "' + b"x" * 3 * 2**20 + b'"}'
    headers = {"Content-Type": "application/json"}
    content = body if declared else (body[i : i + 65_536] for i in range(0, len(body), 65_536))
    refused = user.post("/v1/jobs", content=content, headers=headers)
    assert (refused.status_code, error_in(refused)["code"]) == (413, "too_large")


OF_ANOTHER_SHAPE = (
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"{",
    b"\xff\xfe",
    b'{"input_file_id": null}',
    b'{"input_file_id": 5}',
    b'{"input_file_id": "x", "priority": "1"}',
    b'{"input_file_id": "x", "priority": 1.5}',
    b'{"input_file_id": "x", "priority": true}',
    b'{"input_file_id": "x", "priority": 1e400}',
    b'{"input_file_id": "x", "priority": 99999999999999999999}',
    b'{"input_file_id": "x", "metadata": {"k": 1}}',
    b'{"input_file_id": "x", "metadata": []}',
    b'{"input_file_id": "\\u0000"}',
    b'{"input_file_id": "\\ud800"}',
    b'{"input_file_id": "x", "metadata": {"k": "\\ud800"}}',
    b'{"input_file_id": "x", "model": "\\u0000"}',
    b'{"input_file_id": "x", "engine": {"k": "\\u0000"}}',
    b'{"input_file_id": "x", "engine": {"\\ud800": 1}}',
    b'{"input_file_id": "x", "engine": {"k": NaN}}',
    b'{"input_file_id": "x", "engine": {"k": 1e999}}',
)


def test_a_body_of_another_shape_is_refused(user: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    for body in OF_ANOTHER_SHAPE:
        refused = user.post("/v1/jobs", content=body, headers=headers)
        assert refused.status_code == 400, (body, refused.text)
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["title"] == "Bad Request"


def test_metadata_with_nul_is_refused(user: httpx.Client, file_id: str) -> None:
    body = {"input_file_id": file_id, "metadata": {"k": "\0"}}
    assert user.post("/v1/jobs", json=body).status_code == 400


def test_a_prompt_sent_to_the_wrong_place_is_not_echoed(user: httpx.Client, file_id: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": CANARY}]},
        {"input_file_id": [CANARY]},
        {"input_file_id": CANARY},
        {"input_file_id": file_id, "priority": CANARY},
        {"input_file_id": file_id, "metadata": CANARY},
        {"input_file_id": file_id, "metadata": {"k": [CANARY]}},
        {"input_file_id": file_id, "output_expires_after": {"anchor": CANARY}},
    ]
    for body in bodies:
        refused = user.post("/v1/jobs", json=body)
        assert refused.status_code in {400, 404, 422}
        assert CANARY not in refused.text, body
    broken = f'{{"messages": "{CANARY}'
    refused = user.post("/v1/jobs", content=broken, headers={"Content-Type": "application/json"})
    assert (refused.status_code, CANARY in refused.text) == (400, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = (
    "input_file_id",
    "endpoint",
    "model",
    "completion_window",
    "metadata",
    "priority",
    "engine",
)


def test_any_json_is_answered_and_never_by_a_failure(user: httpx.Client, file_id: str) -> None:
    @settings(max_examples=150, deadline=None)
    @given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.booleans())
    def send(body: dict[str, Any], with_file: bool) -> None:
        asked = body | {"input_file_id": file_id} if with_file else body
        answer = user.post(
            "/v1/jobs",
            content=json.dumps(asked).encode("utf-8", "surrogatepass"),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code in {200, 400, 404, 422}, (asked, answer.text)

    send()


def test_any_path_and_query_is_answered_and_never_by_a_failure(user: httpx.Client) -> None:
    routes = ("/v1/jobs", "/v1/batches", "/v1/files", "/v1/models")

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(routes), st.binary(max_size=12), st.binary(max_size=12))
    def ask(route: str, tail: bytes, query: bytes) -> None:
        for path in (f"{route}/{quote(tail)}", f"{route}?after={quote(query)}"):
            assert user.get(path).status_code in {200, 400, 404, 422}, path

    ask()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("PUT", "/v1/jobs", 405), ("GET", "/v1/batches/x/y", 404)],
)
def test_what_is_no_route_is_answered_in_the_form_of_its_part(
    user: httpx.Client, method: str, path: str, status: int
) -> None:
    refused = user.request(method, path)
    assert refused.status_code == status
    if path.startswith("/v1/batches"):
        assert refused.json()["error"]["type"] == "invalid_request_error"
    else:
        assert refused.json()["status"] == status


def test_a_form_where_json_is_meant_is_refused(user: httpx.Client) -> None:
    assert user.post("/v1/jobs", data={"input_file_id": "x"}).status_code in {400, 415, 422}
    assert user.post("/v1/jobs", content=json.dumps({})).status_code in {400, 415, 422}


def test_every_answer_says_how_to_treat_it(user: httpx.Client) -> None:
    for path in ("/v1/jobs", "/v1/nothing", "/healthz"):
        headers = user.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "no-store" in headers["cache-control"]
        assert len(headers["x-request-id"]) == 16
