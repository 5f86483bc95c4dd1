"""Uploads: streamed, unpacked, bounded; what breaks off leaves nothing behind."""

import gzip
import io
import re
import socket
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from api.uploads import Form
from batchgen.domain.errors import InvalidRequest, NotFound
from batchgen.domain.ids import new_file_id
from batchgen.services import sweep
from batchgen.settings import Settings
from batchgen.storage import files
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.api.hand import Hand
from tests.house import PROJECT, House, chat_lines
from tests.waiting import until

LINES = b"".join(b'{"n": %d}\n' % i for i in range(1_000))
ROUTE = "/v1/files"
MIB = 2**20


def upload(
    client: httpx.Client, data: bytes, name: str = "in.jsonl", **form: str
) -> httpx.Response:
    return client.post(ROUTE, files={"file": (name, data)}, data={"purpose": "batch"} | form)


@pytest.fixture
def nothing_is_left(
    database: Database, store: ObjectStore, settings: Settings
) -> Callable[[], bool]:
    """Whether there is neither a row, nor an object, nor the beginning of one."""

    def look() -> bool:
        with database.unit_of_work() as tx:
            rows = files.page(tx, PROJECT, limit=10)
        partial = list((settings.data_dir / "objects" / ".partial").iterdir())
        return not rows and not partial and not list(store.list("files"))

    return look


@pytest.mark.parametrize(
    "packed",
    [
        LINES,
        gzip.compress(LINES),
        gzip.compress(LINES[:700]) + gzip.compress(LINES[700:]),
        zstandard.compress(LINES),
        zstandard.compress(LINES[:700]) + zstandard.compress(LINES[700:]),
        b"",
        b"\xef\xbb\xbf" + LINES,
    ],
    ids=["plain", "gzip", "two gzip members", "zstd", "two zstd frames", "empty", "with a BOM"],
)
def test_what_was_uploaded_is_kept_unpacked(user: httpx.Client, packed: bytes) -> None:
    plain = packed if packed[:2] not in {b"\x1f\x8b", b"\x28\xb5"} else LINES
    made = upload(user, packed)
    assert made.status_code == 200
    assert made.json()["bytes"] == len(plain)
    assert user.get(f"{ROUTE}/{made.json()['id']}/content").content == plain


def test_a_bomb_is_refused_at_the_cap_and_takes_no_memory(
    user: httpx.Client, nothing_is_left: Callable[[], bool]
) -> None:
    bomb = gzip.compress(b"\0" * (256 * MIB), compresslevel=1)
    process = psutil.Process()
    before = process.memory_info().rss
    refused = upload(user, bomb)
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "file_too_large"
    assert process.memory_info().rss - before < 64 * MIB
    assert nothing_is_left()


@pytest.mark.parametrize("length", [4 * MIB + 1, 6 * MIB])
def test_a_file_over_the_limit_is_refused(
    user: httpx.Client, length: int, nothing_is_left: Callable[[], bool]
) -> None:
    refused = upload(user, b"x" * length)
    assert (refused.status_code, refused.json()["error"]["param"]) == (413, "file")
    assert nothing_is_left()


def test_a_file_at_the_limit_is_taken(user: httpx.Client) -> None:
    assert upload(user, b"x" * (4 * MIB)).json()["bytes"] == 4 * MIB


def test_endless_packed_nothing_is_refused(user: httpx.Client) -> None:
    empty = gzip.compress(b"") * (6 * MIB // 20)
    assert upload(user, empty).status_code == 413


@pytest.mark.parametrize(
    "broken", [gzip.compress(LINES)[:-9], gzip.compress(LINES)[:200] + b"?" * 300]
)
def test_broken_packing_is_refused_and_leaves_nothing(
    user: httpx.Client, broken: bytes, nothing_is_left: Callable[[], bool]
) -> None:
    refused = upload(user, broken)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] in {
        "truncated_compressed_data",
        "invalid_compressed_data",
    }
    assert nothing_is_left()


def test_a_client_that_leaves_leaves_nothing(
    user: httpx.Client, user_key: str, settings: Settings, nothing_is_left: Callable[[], bool]
) -> None:
    assert user.get("/healthz").status_code == 200
    host, port = user.base_url.host, user.base_url.port
    head = (
        f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {user_key}\r\n"
        "Content-Type: multipart/form-data; boundary=X\r\nContent-Length: 3000000\r\n\r\n"
        '--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    partial = settings.data_dir / "objects" / ".partial"
    with socket.create_connection((host, port or 80)) as connection:
        connection.sendall(head.encode() + b"x" * MIB)
        until(lambda: [path for path in partial.iterdir() if path.stat().st_size])
    until(nothing_is_left)


@pytest.mark.parametrize(
    ("form", "param", "status"),
    [
        ({"purpose": "fine-tune"}, "purpose", 400),
        ({"purpose": "x" * 100}, "purpose", 400),
        ({"purpos": "batch"}, "purpos", 422),
        ({"project": "other"}, "project", 422),
        ({"expires_after[anchor]": "created_at"}, "expires_after", 400),
        (
            {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "expires_after[anchor]",
            400,
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"},
            "expires_after[seconds]",
            400,
        ),
    ],
)
def test_a_wrong_field_is_named(
    user: httpx.Client,
    form: dict[str, str],
    param: str,
    status: int,
    nothing_is_left: Callable[[], bool],
) -> None:
    refused = upload(user, LINES, **form)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert nothing_is_left()


def test_an_unknown_field_gets_the_nearest_known_one(user: httpx.Client) -> None:
    message = upload(user, LINES, purpos="batch").json()["error"]["message"]
    assert "did you mean 'purpose'?" in message


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "missing"),
        (b"no form at all, just words" * 10, "invalid_multipart"),
        (b'--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc', None),
        (b'--X\r\nContent-Disposition: form-data; name="file"\r\n\r\na\r\n--X--\r\n', "missing"),
        (b'--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--X--', "missing"),
        (
            2 * b'--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\na\r\n',
            "invalid_multipart",
        ),
        (
            b'--X\r\nContent-Disposition: form-data; name="file"; filename="'
            + b"a" * 200_000
            + b'"\r\n\r\na\r\n--X--',
            "invalid_multipart",
        ),
        (
            b'--X\r\nContent-Disposition: form-data; name="\xff\xfe"\r\n\r\na\r\n--X--',
            "invalid_multipart",
        ),
    ],
    ids=[
        "empty",
        "no form",
        "cut off",
        "no purpose",
        "no file",
        "twice",
        "endless header",
        "no text",
    ],
)
def test_a_form_that_is_none_is_refused(
    user: httpx.Client, body: bytes, code: str | None, nothing_is_left: Callable[[], bool]
) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=X"}
    refused = user.post(ROUTE, content=body, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == (code or "truncated_multipart")
    assert nothing_is_left()


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "text/plain", ""])
def test_another_content_type_is_refused(user: httpx.Client, kind: str) -> None:
    refused = user.post(ROUTE, content=b"{}", headers={"Content-Type": kind})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_multipart")


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/batches", "/v1/files", "/v1/models"])
def test_a_packed_body_is_refused(admin: httpx.Client, route: str) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    refused = admin.post(route, content=gzip.compress(b"{}"), headers=headers)
    assert refused.status_code == 415
    assert "unsupported_content_encoding" in refused.text


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\\\data\\\\in.jsonl", "in.jsonl"),
        ("ünïcode ☃.jsonl", "ünïcode ☃.jsonl"),
        ("a" * 400, "a" * 255),
        ("bell\x07.jsonl", "bell.jsonl"),
    ],
)
def test_a_file_name_is_a_name_and_no_path(user: httpx.Client, given_name: str, kept: str) -> None:
    body = (
        '--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--X\r\n'
        f'Content-Disposition: form-data; name="file"; filename="{given_name}"\r\n\r\n'
        "a\r\n--X--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=X"}
    made = user.post(ROUTE, content=body.encode(), headers=headers)
    assert made.json()["filename"] == kept
    content = user.get(f"{ROUTE}/{made.json()['id']}/content")
    assert re.fullmatch(
        r"attachment; filename\*=UTF-8''\S+", content.headers["content-disposition"]
    )


def test_a_file_without_a_name_gets_one(user: httpx.Client) -> None:
    made = upload(user, LINES, name="/").json()
    assert made["filename"] == f"{made['id']}.jsonl"


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(1, 40), max_size=30))
def test_the_file_comes_out_of_the_form_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    body = (
        b'--XyX\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + data.replace(b"--XyX", b"")
        + b'\r\n--XyX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--XyX--\r\n'
    )
    got = io.BytesIO()
    form = Form(
        {"Content-Type": "multipart/form-data; boundary=XyX"},
        on_file=lambda chunk: got.write(chunk) and None,
        on_text=lambda *_: None,
    )
    for piece in pieces(body, cuts):
        form.feed(piece)
    assert got.getvalue() == data.replace(b"--XyX", b"")
    assert form.text("purpose") == "batch"


@given(data=st.binary(max_size=400))
def test_any_bytes_are_a_form_or_refused(data: bytes) -> None:
    form = Form(
        {"Content-Type": "multipart/form-data; boundary=X"},
        on_file=lambda _: None,
        on_text=lambda *_: None,
    )
    try:
        form.feed(b"--X\r\n" + data)
    except InvalidRequest:
        return


def test_an_object_whose_upload_was_killed_is_swept(house: House) -> None:
    key, file_id = "files/lost", new_file_id()
    reserved = {"file_id": file_id, "project": PROJECT, "purpose": "batch", "filename": "a"}
    with house.database.unit_of_work() as tx:
        files.reserve_uploaded(tx, **reserved, size=3, object_key=key, for_s=60)
    house.store.put(key, b"abc")
    with house.database.unit_of_work() as tx:
        assert files.page(tx, PROJECT, limit=10) == []
    assert sweep.run_once(house.database, house.store, house.bells).objects_removed == 0
    with house.database.unit_of_work() as tx:
        tx.exec_driver_sql("UPDATE files SET deleted_at = now() - interval '1 second'")
    assert sweep.run_once(house.database, house.store, house.bells).objects_removed == 1
    assert not house.store.exists(key)
    with house.database.unit_of_work() as tx, pytest.raises(NotFound):
        files.confirm_uploaded(tx, file_id, sha256="x")


def test_an_expired_file_stays_while_a_job_reads_it(house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(2))
    with house.database.unit_of_work() as tx:
        tx.exec_driver_sql("UPDATE files SET expires_at = now() - interval '1 second'")
    assert sweep.run_once(house.database, house.store, house.bells).objects_removed == 0
    hand.work_off(job.id)
    assert sweep.run_once(house.database, house.store, house.bells).objects_removed == 1


def pieces(body: bytes, cuts: list[int]) -> Iterator[bytes]:
    start = 0
    for cut in cuts:
        yield body[start : start + cut]
        start += cut
    yield body[start:]
