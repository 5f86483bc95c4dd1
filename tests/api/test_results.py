"""Results: each line once, in the order of the input, also while the job runs."""

import json
from collections.abc import Iterator

import httpx
import pytest

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import JobId
from batchgen.domain.jobs import Section
from batchgen.services import results, sweep
from batchgen.storage.objects import ObjectStore
from tests.api.hand import Hand
from tests.house import House, chat_lines


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/jsonl"
    return [json.loads(line)["custom_id"] for line in answer.text.splitlines()]


def test_a_job_without_results_yet_has_none(user: httpx.Client, house: House) -> None:
    job = house.submit(chat_lines(3))
    for part in ("results", "errors", "timings"):
        assert ids(user.get(f"/v1/jobs/{job.id}/{part}")) == []


def test_results_so_far_are_in_the_order_of_the_input(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(10))
    route = f"/v1/jobs/{job.id}"
    first, second = hand.claim(), hand.claim()
    hand.checkpoint(second, [7, 4])
    hand.checkpoint(second, [6], failed=[5])
    assert ids(user.get(f"{route}/results")) == ["r4", "r6", "r7"]
    assert ids(user.get(f"{route}/errors")) == ["r5"]
    hand.checkpoint(first, [2])
    assert ids(user.get(f"{route}/timings")) == ["r2", "r4", "r6", "r7"]
    hand.finish(first, failed=[0, 3])
    assert ids(user.get(f"{route}/results")) == ["r1", "r2", "r4", "r6", "r7"]
    assert ids(user.get(f"{route}/errors")) == ["r0", "r3", "r5"]
    counts = user.get(route).json()["counts"]
    assert counts == {"total": 10, "completed": 5, "failed": 3, "open": 2}


def test_at_the_end_results_have_ranges_as_files_have(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(10))
    hand.work_off(job.id, failed=[9])
    route = f"/v1/jobs/{job.id}/results"
    whole = user.get(route)
    assert ids(whole) == [f"r{i}" for i in range(9)]
    part = user.get(route, headers={"Range": "bytes=5-9", "If-Range": whole.headers["etag"]})
    assert (part.status_code, part.content) == (206, whole.content[5:10])
    output = house.job(job.id).output_file_id
    assert user.get(f"/v1/files/{output}/content").content == whole.content
    assert ids(user.get(f"/v1/jobs/{job.id}/errors")) == ["r9"]
    assert len(ids(user.get(f"/v1/jobs/{job.id}/timings"))) == 9


def test_deleted_results_are_gone_on_every_way(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(3))
    hand.work_off(job.id)
    output = house.job(job.id).output_file_id
    assert user.delete(f"/v1/files/{output}").status_code == 200
    assert user.get(f"/v1/jobs/{job.id}/results").status_code == 404


def test_deleted_results_are_swept_once_nothing_of_them_can_be_read(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(6))
    hand.work_off(job.id, failed=[0])
    job = house.job(job.id)

    def sweep_up() -> int:
        return sweep.run_once(house.database, house.store, house.bells).objects_removed

    user.delete(f"/v1/files/{job.output_file_id}")
    assert sweep_up() == 0
    assert ids(user.get(f"/v1/jobs/{job.id}/errors")) == ["r0"]
    user.delete(f"/v1/files/{job.error_file_id}")
    refused = user.post(f"/v1/jobs/{job.id}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "results_deleted")
    assert sweep_up() == 2
    assert not list(house.store.list(f"jobs/{job.id}"))
    assert sweep_up() == 0
    assert user.get(f"/v1/jobs/{job.id}").json()["counts"]["completed"] == 5


def test_a_retry_after_one_file_was_deleted_keeps_what_completed(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(6))
    hand.work_off(job.id, failed=[0])
    user.delete(f"/v1/files/{house.job(job.id).error_file_id}")
    assert user.post(f"/v1/jobs/{job.id}/retry").status_code == 200
    assert sweep.run_once(house.database, house.store, house.bells).objects_removed == 0
    hand.work_off(job.id)
    assert len(ids(user.get(f"/v1/jobs/{job.id}/results"))) == 6


def test_a_rejected_job_has_empty_results(user: httpx.Client, house: House) -> None:
    job = house.queue(b"no json\n")
    assert ids(user.get(f"/v1/jobs/{job.id}/results")) == []
    found = user.get(f"/v1/jobs/{job.id}").json()
    assert (found["state"], found["faults"][0]["line"]) == ("failed", 1)


def test_all_failed_is_said(user: httpx.Client, house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(3))
    hand.work_off(job.id, failed=range(3))
    found = user.get(f"/v1/jobs/{job.id}").json()
    assert (found["status"], found["all_failed"]) == ("completed", True)
    assert (found["output_file_id"], found["counts"]["failed"]) == (None, 3)


class ChangingStore(ObjectStore):
    """A store in which something happens before the first read."""

    def __init__(self, inner: ObjectStore, deed: Iterator[None]) -> None:
        super().__init__(inner._backend)
        self._deed = deed

    def get_range(self, key: str, start: int, end: int) -> bytes:
        next(self._deed, None)
        return super().get_range(key, start, end)


def test_a_shard_that_ends_while_it_is_read_is_read_from_its_end(house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(4))
    shard = hand.claim()
    hand.checkpoint(shard, [2, 0])

    def deed() -> Iterator[None]:
        yield hand.finish(shard)

    store = ChangingStore(house.store, deed())
    found = b"".join(results.so_far(house.database, store, job.id, Section.OUTPUT))
    got = [json.loads(line)["custom_id"] for line in found.splitlines()]
    assert got == ["r0", "r1", "r2", "r3"]


def test_checkpoints_that_are_gone_for_good_are_an_error(house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(4))
    hand.checkpoint(hand.claim(), [1])
    for key in house.store.list("jobs"):
        house.store.delete(key)
    with pytest.raises(NotFound):
        list(results.so_far(house.database, house.store, JobId(job.id), Section.OUTPUT))


def test_metrics_and_manifest_are_there(user: httpx.Client, house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(3))
    assert user.get(f"/v1/jobs/{job.id}/metrics").json() == {}
    hand.work_off(job.id)
    assert user.get(f"/v1/jobs/{job.id}/metrics").json()
    manifest = user.get(f"/v1/jobs/{job.id}/manifest").json()
    assert (manifest["job"], manifest["model"]) == (job.id, "sim")
