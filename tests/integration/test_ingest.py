"""Ingest against Postgres: shards or faults, once, whatever happens while the file is read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from batchgen.domain.errors import NotFound, Unavailable
from batchgen.domain.ids import JobId, Project, new_file_id
from batchgen.domain.jobs import Job
from batchgen.domain.states import JobEvent, JobState
from batchgen.services import cancel, finalize, ingest, models, submit
from batchgen.services.ingest import Ingested
from batchgen.settings import Settings
from batchgen.storage import control, files, jobs, shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

PROJECT = Project("default")
CHAT = "/v1/chat/completions"


class HeardBells:
    """Remembers who was told."""

    def __init__(self) -> None:
        self.rung: list[str] = []

    def ring_ingest(self, job_id: JobId) -> None:
        self.rung.append(f"ingest {job_id}")

    def ring_finalize(self, job_id: JobId) -> None:
        self.rung.append(f"finalize {job_id}")

    def ring_devices(self, pool: str, device: str | None) -> None:  # noqa: ARG002 - the protocol's
        self.rung.append(f"devices {pool}")


class MovableClock:
    """Time goes on when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> Any:
        raise NotImplementedError


class WatchedStore(ObjectStore):
    """A store that does something at the first chunk that is read from it."""

    def __init__(self, inner: ObjectStore, deed: Callable[[], None]) -> None:
        super().__init__(inner._backend)
        self._deed = deed

    def stream(self, key: str, start: int = 0, end: int | None = None, chunk: int = 256) -> Any:
        for i, piece in enumerate(super().stream(key, start, end, chunk)):
            if i == 0:
                self._deed()
            yield piece


class Killed(BaseException):
    """What a process does not survive."""


@dataclass
class Site:
    """A database, a store and the registered model `sim`; what a test does with them."""

    database: Database
    store: ObjectStore
    settings: Settings
    bells: HeardBells

    def submit(self, data: bytes, **options: Any) -> JobId:
        file_id = new_file_id()
        stored = self.store.put(f"uploads/{file_id}", data)
        with self.database.unit_of_work() as tx:
            files.insert_uploaded(
                tx,
                file_id=file_id,
                project=PROJECT,
                purpose="batch",
                filename="in.jsonl",
                size=stored.size,
                sha256=stored.sha256,
                object_key=stored.key,
            )
        asked = submit.Submission(project=PROJECT, input_file_id=file_id, **options)
        return submit.submit(self.database, HeardBells(), self.settings, asked).id

    def ingest(
        self, job_id: JobId, *, store: ObjectStore | None = None, **options: Any
    ) -> Ingested | None:
        settings = options.pop("settings", self.settings)
        return ingest.run_once(
            self.database, store or self.store, self.bells, settings, job_id, **options
        )

    def cancel(self, job_id: JobId) -> None:
        cancel.cancel(self.database, HeardBells(), job_id, PROJECT)

    def job(self, job_id: JobId) -> Job:
        with self.database.unit_of_work() as tx:
            return jobs.get(tx, job_id)

    def n_shards(self) -> int:
        with self.database.unit_of_work() as tx:
            return int(tx.execute(text("SELECT count(*) FROM shards")).scalar_one())


@pytest.fixture
def site(database: Database, store: ObjectStore, settings: Settings) -> Site:
    models.register(database, settings, name="sim", spec={"engine": "simulated"})
    return Site(database, store, settings, HeardBells())


def lines(n: int, *, model: str = "sim") -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    return b"".join(
        json.dumps({"custom_id": f"r{i}", "method": "POST", "url": CHAT, "body": body}).encode()
        + b"\n"
        for i in range(n)
    )


def test_a_good_file_becomes_shards_and_the_job_is_queued(site: Site) -> None:
    few = site.settings.model_copy(update={"shard_lines": 4})
    job_id = site.submit(lines(10))
    done = site.ingest(job_id, settings=few)
    assert done == Ingested(JobState.QUEUED, 10, 3, pool="default")
    job = site.job(job_id)
    assert (job.state, job.model, job.pool, job.counts.total) == (
        JobState.QUEUED,
        "sim",
        "default",
        10,
    )
    assert job.engine_fingerprint
    assert job.engine_spec is not None
    assert job.engine_spec["engine"] == "simulated"
    with site.database.unit_of_work() as tx:
        plans = [plan for _, plan in shards.pending_of(tx, job_id, limit=10)]
    assert [(p.seq, p.first_line, p.first_index, p.n_requests) for p in plans] == [
        (0, 1, 0, 4),
        (1, 5, 4, 4),
        (2, 9, 8, 2),
    ]
    assert (plans[0].byte_start, plans[-1].byte_end) == (0, len(lines(10)))
    assert site.bells.rung == ["devices default"]


def test_a_faulty_file_is_rejected_with_every_fault_and_leaves_nothing(site: Site) -> None:
    job_id = site.submit(lines(2) + b"{\n" + lines(1))
    done = site.ingest(job_id)
    assert done == Ingested(JobState.FAILED, n_faults=2)
    job = site.job(job_id)
    assert [(f.code, f.line) for f in job.faults] == [
        ("invalid_json_line", 3),
        ("duplicate_custom_id", 4),
    ]
    assert job.failed_at is not None
    assert site.n_shards() == 0


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_rejected(site: Site, data: bytes) -> None:
    job_id = site.submit(data)
    site.ingest(job_id)
    assert [(f.code, f.line) for f in site.job(job_id).faults] == [("empty_file", None)]


def test_faults_that_hold_nul_and_surrogates_reach_the_database(site: Site) -> None:
    odd = lines(1).replace(b"r0", b"\\u0000\\ud83d")
    job_id = site.submit(odd + odd.replace(b'"method"', b'"\\u0000\\ud83d": 1, "method"'))
    site.ingest(job_id)
    job = site.job(job_id)
    assert [f.code for f in job.faults] == ["unknown_parameter", "duplicate_custom_id"]


def test_a_model_that_nobody_registered_is_a_fault_that_names_those_there_are(site: Site) -> None:
    job_id = site.submit(lines(2, model="gpt-4o"))
    done = site.ingest(job_id)
    assert done == Ingested(JobState.FAILED, n_faults=1)
    [fault] = site.job(job_id).faults
    assert fault.code == "model_not_found"
    assert "sim" in fault.message
    assert site.n_shards() == 0


def test_the_jobs_overrides_decide_the_engine(site: Site) -> None:
    plain, changed = site.submit(lines(1)), site.submit(lines(1), overrides={"max_num_seqs": 7})
    for job_id in (plain, changed):
        site.ingest(job_id)
    spec = site.job(changed).engine_spec
    assert spec is not None
    assert spec["max_num_seqs"] == 7
    prints = {site.job(job_id).engine_fingerprint for job_id in (plain, changed)}
    assert len(prints) == 2


def test_an_input_that_is_gone_is_a_fault(site: Site) -> None:
    job_id = site.submit(lines(1))
    for key in list(site.store.list("uploads")):
        site.store.delete(key)
    site.ingest(job_id)
    assert [f.code for f in site.job(job_id).faults] == ["file_not_found"]


def test_a_second_run_has_nothing_to_do(site: Site) -> None:
    job_id = site.submit(lines(3))
    assert site.ingest(job_id) is not None
    assert site.ingest(job_id) is None
    assert site.n_shards() == 1


def test_while_one_reads_no_other_starts(site: Site) -> None:
    job_id = site.submit(lines(3))
    others: list[Ingested | None] = []

    def try_as_well() -> None:
        others.append(site.ingest(job_id))

    watched = WatchedStore(site.store, try_as_well)
    done = site.ingest(job_id, store=watched)
    assert others == [None]
    assert done is not None
    assert done.state is JobState.QUEUED
    assert site.n_shards() == 1


def test_killed_while_reading_it_leaves_nothing_and_can_be_run_again(site: Site) -> None:
    job_id = site.submit(lines(50))

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        site.ingest(job_id, store=WatchedStore(site.store, die))
    assert site.n_shards() == 0
    assert site.job(job_id).state is JobState.VALIDATING
    done = site.ingest(job_id)
    assert done is not None
    assert done.n_requests == 50


def test_a_store_that_is_away_is_no_fault_of_the_file(site: Site) -> None:
    job_id = site.submit(lines(3))

    def fail() -> None:
        raise Unavailable("the object store is away")

    with pytest.raises(Unavailable):
        site.ingest(job_id, store=WatchedStore(site.store, fail))
    with site.database.unit_of_work() as tx:
        assert control.needing_ingest(tx) == [job_id]


def test_a_job_cancelled_while_its_file_is_read_makes_no_shards_and_is_finalized(
    site: Site,
) -> None:
    job_id = site.submit(lines(50))

    def cancel_it() -> None:
        site.cancel(job_id)

    done = site.ingest(job_id, store=WatchedStore(site.store, cancel_it))
    assert done == Ingested(JobState.CANCELLING)
    assert site.bells.rung == [f"finalize {job_id}"]
    finalize.run_once(site.database, site.store, site.settings, job_id)
    job = site.job(job_id)
    assert (job.state, job.counts.total) == (JobState.CANCELLED, 0)
    # No line was accepted yet: there is none to account for.
    assert (job.output_file_id, job.error_file_id) == (None, None)


def test_a_cancel_is_seen_at_the_next_renewal_not_only_at_the_end(site: Site) -> None:
    job_id = site.submit(lines(50))
    clock = MovableClock()
    read: list[int] = []

    class Counting(WatchedStore):
        def stream(self, key: str, start: int = 0, end: int | None = None, chunk: int = 256) -> Any:
            for piece in super().stream(key, start, end, chunk):
                read.append(len(piece))
                yield piece

    def cancel_it() -> None:
        site.cancel(job_id)
        clock.seconds += site.settings.lease_s / 2

    site.ingest(job_id, store=Counting(site.store, cancel_it), clock=clock)
    assert len(read) == 1


def test_a_late_ingest_whose_lease_went_to_another_writes_nothing(site: Site) -> None:
    job_id = site.submit(lines(3))

    def lose_it() -> None:
        with site.database.unit_of_work() as tx:
            tx.execute(text("UPDATE jobs SET control_until = now() - interval '1 s'"))
        assert site.ingest(job_id) is not None

    late = site.ingest(job_id, store=WatchedStore(site.store, lose_it))
    assert late is None
    assert site.n_shards() == 1
    assert site.job(job_id).state is JobState.QUEUED


def test_an_expired_job_is_not_sharded(site: Site) -> None:
    job_id = site.submit(lines(3))
    with site.database.unit_of_work() as tx:
        jobs.advance(tx, job_id, JobEvent.EXPIRE)
    assert site.ingest(job_id) == Ingested(JobState.EXPIRING)
    assert site.n_shards() == 0


def test_an_unknown_job_is_nothing_to_do(site: Site) -> None:
    assert site.ingest(JobId("batch_none")) is None
    with pytest.raises(NotFound):
        site.job(JobId("batch_none"))
