"""Killed at any point of its life, a job still ends with each of its lines once."""

import json
from collections.abc import Callable

import pytest
from sqlalchemy import text

from batchgen.domain.failpoints import Failpoint
from batchgen.domain.jobs import Job, Ordering
from batchgen.domain.outcomes import Failed
from batchgen.domain.states import JobState
from batchgen.services import cancel, records, results, submit
from batchgen.storage import segments, shards
from tests.crashing import IDEMPOTENCY_KEY, killed_at
from tests.house import PROJECT, House, chat_lines, jsonl
from tests.recovery import bring_to_its_end
from workers.prepare import failed_record
from workers.shard_work import ShardWork

N = 6
# What the object store keeps although no row tells of it, until the job's files are deleted.
_MAY_LEAVE_OBJECTS = {Failpoint.PUBLISH_COMMITTED}


@pytest.fixture
def quick(house: House) -> House:
    """Shards of three lines, of which each is written down as soon as it is done."""
    settings = house.settings.model_copy(update={"shard_lines": 3, "checkpoint_s": 0.005})
    made = House(house.database, house.store, settings)
    made.register(max_num_seqs=1, step_s=0.003)
    return made


def submitted(house: House) -> Job:
    return house.submit(chat_lines(N))


def queued(house: House) -> Job:
    return house.queue(chat_lines(N))


def slow_to_finish(house: House) -> Job:
    """The last line of each shard takes long enough for the others to be written down before."""
    lines = chat_lines(N)
    for last in (2, 5):
        lines[last]["body"]["max_tokens"] = 120
    return house.queue(lines, ordering=Ordering.INPUT)


def with_errors(house: House, *, n_shards: int, whole: bool = True) -> Job:
    """A job of which so many shards are done, or begun, with lines that failed."""
    job = queued(house)
    for _ in range(n_shards):
        with house.database.unit_of_work() as tx:
            held = shards.claim(tx, pool="default", device="CPU", holder="w", lease_s=60)
        assert held is not None
        work = ShardWork(house.database, house.store, held)
        while (line := work.next_line()) is not None:
            work.add(failed_record(line, Failed(500, "x", "x")))
            if not whole:
                break
        work.checkpoint()
        with house.database.unit_of_work() as tx:
            shards.release(tx, [held.token])
    return job


def worked_off(house: House) -> Job:
    return with_errors(house, n_shards=2)


def begun_and_cancelled(house: House) -> Job:
    job = with_errors(house, n_shards=1, whole=False)
    cancel.cancel(house.database, house.bells, job.id, PROJECT)
    return job


def ended(house: House) -> Job:
    job = worked_off(house)
    house.finalize(job.id)
    return job


# By the deed that comes to them: how far the job is before.
_BEFORE: dict[str, Callable[[House], Job]] = {
    "ingest": submitted,
    "claim": queued,
    "line": queued,
    "checkpoint": slow_to_finish,
    "finish": queued,
    "finalize": worked_off,
    "publish": worked_off,
    "cut": begun_and_cancelled,
    "cancel": queued,
    "retry": ended,
}
_DEED = {
    "claim": "work",
    "line": "work",
    "checkpoint": "work",
    "finish": "work",
    "publish": "finalize",
    "cut": "finalize",
}


def downloaded(house: House, job: Job) -> list[str]:
    """The custom ids in the job's files, as a user gets them."""
    found = []
    for file_id in (job.output_file_id, job.error_file_id):
        if file_id is not None:
            _, content = results.of_file(house.database, file_id, PROJECT)
            body = b"".join(content.read(house.store, 0, content.size))
            found += [json.loads(line)["custom_id"] for line in body.splitlines()]
    return sorted(found)


@pytest.mark.parametrize("point", [p for p in Failpoint if not p.startswith("submit")])
def test_each_line_ends_once_wherever_a_process_is_killed(quick: House, point: Failpoint) -> None:
    part = point.split("_")[0]
    job = _BEFORE[part](quick)
    assert killed_at(point, _DEED.get(part, part), quick.settings, job.id)
    end = bring_to_its_end(quick, job.id)
    assert downloaded(quick, end) == sorted(f"r{i}" for i in range(N))
    assert end.counts.completed + end.counts.failed == end.counts.total == N
    if point not in _MAY_LEAVE_OBJECTS:
        with quick.database.unit_of_work() as tx:
            kept = segments.referenced_keys(tx, job.id)
        assert set(quick.store.list(records.job_prefix(job.id))) == kept


@pytest.mark.parametrize("point", [p for p in Failpoint if p.startswith("submit")])
def test_a_job_submitted_again_after_a_kill_is_one_job(quick: House, point: Failpoint) -> None:
    file_id = quick.upload(jsonl(chat_lines(N)))
    assert killed_at(point, "submit", quick.settings, file_id)
    asked = submit.Submission(
        project=PROJECT, input_file_id=file_id, idempotency_key=IDEMPOTENCY_KEY
    )
    job = submit.submit(quick.database, quick.bells, quick.settings, asked)
    assert downloaded(quick, bring_to_its_end(quick, job.id)) == sorted(f"r{i}" for i in range(N))
    with quick.database.unit_of_work() as tx:
        assert tx.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 1


def test_an_unarmed_point_is_passed(quick: House) -> None:
    job = queued(quick)
    assert not killed_at("", "cancel", quick.settings, job.id)
    assert quick.job(job.id).state is JobState.CANCELLING
