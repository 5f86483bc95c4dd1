"""Downloads: any range of a file that was never written as a whole, resumed where it broke off."""

import hashlib
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import FileId
from batchgen.services import results
from batchgen.services.results import Content, Piece
from batchgen.services.retry import retry
from batchgen.storage.objects import ObjectStore
from tests.api.hand import Hand
from tests.house import PROJECT, House, chat_lines

FAILED = [1, 5, 6]


@pytest.fixture
def produced(house: House, hand: Hand) -> FileId:
    """The output file of a job of ten lines in three shards, three of which failed."""
    job = house.queue(chat_lines(10))
    hand.work_off(job.id, failed=FAILED)
    file_id = house.job(job.id).output_file_id
    assert file_id is not None
    return file_id


def content(user: httpx.Client, file_id: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return user.get(f"/v1/files/{file_id}/content", headers=named)


def test_the_whole_says_its_length_and_its_strong_tag(user: httpx.Client, produced: FileId) -> None:
    whole = content(user, produced)
    assert whole.status_code == 200
    assert int(whole.headers["content-length"]) == len(whole.content)
    assert whole.headers["etag"].startswith('"')
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.text.count("\n") == 7
    file = user.get(f"/v1/files/{produced}").json()
    assert file["bytes"] == len(whole.content)


def test_head_says_the_same_without_the_bytes(user: httpx.Client, produced: FileId) -> None:
    whole = content(user, produced)
    head = user.head(f"/v1/files/{produced}/content")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "accept-ranges", "content-type"):
        assert head.headers[name] == whole.headers[name]


def test_every_range_is_exactly_its_bytes(user: httpx.Client, produced: FileId) -> None:
    whole = content(user, produced).content
    size = len(whole)
    # Across every seam between segments, and at both ends.
    seams = [i for i, byte in enumerate(whole) if byte == 10]
    cuts = sorted({0, 1, size - 1, *seams, *(seam + 1 for seam in seams if seam + 1 < size)})
    for start in cuts:
        for last in (start, min(start + 700, size - 1), size - 1, size + 50):
            got = content(user, produced, range=f"bytes={start}-{last}")
            assert got.status_code == 206
            assert got.content == whole[start : last + 1]
            assert got.headers["content-range"] == f"bytes {start}-{min(last, size - 1)}/{size}"
            assert int(got.headers["content-length"]) == len(got.content)


def test_open_and_suffix_ranges(user: httpx.Client, produced: FileId) -> None:
    whole = content(user, produced).content
    assert content(user, produced, range="bytes=100-").content == whole[100:]
    assert content(user, produced, range="bytes=-100").content == whole[-100:]
    assert content(user, produced, range=f"bytes=-{len(whole) + 9}").content == whole


def test_a_range_beyond_the_end_is_told_the_size(user: httpx.Client, produced: FileId) -> None:
    size = len(content(user, produced).content)
    for asked in (f"bytes={size}-", f"bytes={size}-{size + 5}", "bytes=-0"):
        refused = content(user, produced, range=asked)
        assert refused.status_code == 416
        assert refused.headers["content-range"] == f"bytes */{size}"
        assert refused.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,3-4", "lines=0-1", "bytes=", "bytes=-", "bytes=5-2", "bytes=a-b", "x" * 99]
)
def test_a_range_that_cannot_be_read_gets_the_whole(
    user: httpx.Client, produced: FileId, asked: str
) -> None:
    got = content(user, produced, range=asked)
    assert got.status_code == 200
    assert int(got.headers["content-length"]) == len(got.content)


def test_a_cut_download_is_resumed_if_the_file_is_the_same(
    user: httpx.Client, produced: FileId
) -> None:
    whole = content(user, produced)
    tag = whole.headers["etag"]
    rest = content(user, produced, range="bytes=200-", if_range=tag)
    assert (rest.status_code, whole.content[:200] + rest.content) == (206, whole.content)
    for changed in ('"another"', f"W/{tag}", "Tue, 01 Dec 2026 00:00:00 GMT"):
        again = content(user, produced, range="bytes=200-", if_range=changed)
        assert (again.status_code, again.content) == (200, whole.content)


def test_what_the_client_has_is_not_sent_again(user: httpx.Client, produced: FileId) -> None:
    tag = content(user, produced).headers["etag"]
    assert content(user, produced, if_none_match=f'"x", {tag}').status_code == 304
    assert content(user, produced, if_none_match='"x"').status_code == 200


def test_an_empty_file_has_no_range(user: httpx.Client, house: House) -> None:
    file_id = house.upload(b"")
    assert content(user, file_id).headers["content-length"] == "0"
    assert content(user, file_id, range="bytes=0-").status_code == 416


def test_a_retry_withdraws_the_files_and_makes_new_ones(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(10))
    hand.work_off(job.id, failed=FAILED)
    before = house.job(job.id).output_file_id
    assert before is not None
    tag = content(user, before).headers["etag"]
    retry(house.database, house.bells, job.id, PROJECT)
    assert content(user, before, range="bytes=9-", if_range=tag).status_code == 404
    hand.work_off(job.id)
    after = house.job(job.id).output_file_id
    assert after not in {None, before}
    assert content(user, str(after)).headers["etag"] != tag
    assert content(user, str(after)).text.count("\n") == 10


def test_an_object_that_is_gone_is_not_found_and_no_broken_answer(
    user: httpx.Client, house: House
) -> None:
    file_id = house.upload(b"x" * 100)
    for key in house.store.list("uploads"):
        house.store.delete(key)
    assert content(user, file_id).status_code == 404


def test_a_big_file_comes_by_ranges_with_its_hash(user: httpx.Client, house: House) -> None:
    data = hashlib.shake_128(b"seed").digest(12 * 2**20)
    file_id = house.upload(data)
    step = 5 * 2**20
    got = b"".join(
        content(user, file_id, range=f"bytes={start}-{start + step - 1}").content
        for start in range(0, len(data), step)
    )
    assert got == data
    tag = content(user, file_id).headers["etag"]
    assert tag == f'"{hashlib.sha256(data).hexdigest()}"'


def test_a_file_in_use_stays_until_its_job_has_ended(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(3))
    refused = user.delete(f"/v1/files/{job.input_file_id}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "file_in_use")
    hand.work_off(job.id)
    assert user.delete(f"/v1/files/{job.input_file_id}").json()["deleted"]
    assert user.get(f"/v1/files/{job.input_file_id}").status_code == 404
    assert content(user, job.input_file_id).status_code == 404
    again: dict[str, Any] = {"input_file_id": job.input_file_id}
    assert user.post("/v1/jobs", json=again).status_code == 404


@given(
    sizes=st.lists(st.integers(0, 7), max_size=8),
    ends=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_pieces_read_as_one_file(sizes: list[int], ends: tuple[int, int]) -> None:
    store = ObjectStore.from_url("memory://")
    pieces, whole = [], b""
    for i, size in enumerate(sizes):
        body = bytes((i * 16 + j) % 256 for j in range(size + 3))
        store.put(f"o{i}", body)
        pieces.append(Piece(f"o{i}", 2, 2 + size))
        whole += body[2 : 2 + size]
    read = Content(pieces, "")
    assert read.size == len(whole)
    start, end = sorted(min(e, read.size) for e in ends)
    assert b"".join(read.read(store, start, end)) == whole[start:end]


def test_a_file_whose_job_runs_again_is_not_found(house: House, produced: FileId) -> None:
    with house.database.unit_of_work() as tx:
        tx.exec_driver_sql("UPDATE segments SET final = false WHERE shard_id = 1")
    with pytest.raises(NotFound):
        results.of_file(house.database, produced, PROJECT)
