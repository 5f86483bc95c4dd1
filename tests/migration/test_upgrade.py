"""What an earlier version left in the database is there after an upgrade, and work goes on.

The database is filled at revision 0001 by SQL alone, and the object store by hand: nothing of
today's code decides what they hold.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, create_engine, text

from batchgen.domain.ids import FileId, JobId
from batchgen.domain.jobs import Section
from batchgen.domain.states import OPENAI_STATUS, TERMINAL_JOB_STATES, JobState
from batchgen.services import cancel, keys, manifest, results, retry
from batchgen.settings import Settings
from batchgen.storage import devices, jobs, models
from batchgen.storage.migrate import config, upgrade
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.house import CHAT, PROJECT, House
from tests.recovery import bring_to_its_end

KEY_ID, SECRET = "0123456789ab", "c" * 48
TOKEN = "11111111-1111-1111-1111-111111111111"
FINGERPRINT = "d6b7c303b53bc02654ace991632be92a"
SPEC = {
    "engine": "simulated",
    "path": None,
    "device": None,
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "load_s": 0.0,
    "step_s": 0.0,
    "step_s_per_seq": 0.0,
    "prefill_tok_s": 0.0,
    "kv_blocks": None,
    "default_max_tokens": 16,
    "max_requests_per_process": None,
    "rules": [],
}
# Two shards of three lines each.
NAMES = [f"r{i}" for i in range(6)]
# Of which state there is a job, and the columns that tell since when.
STATES = {
    "validating": [],
    "queued": ["in_progress_at"],
    "running": ["in_progress_at"],
    "paused": ["in_progress_at", "paused_at"],
    "finalizing": ["in_progress_at", "finalizing_at"],
    "cancelling": ["in_progress_at", "cancelling_at"],
    "expiring": ["in_progress_at"],
    "completed": ["in_progress_at", "finalizing_at", "completed_at"],
    "failed": ["failed_at"],
    "cancelled": ["in_progress_at", "cancelling_at", "cancelled_at"],
    "expired": ["in_progress_at", "expired_at"],
}
_ENDED = {"completed", "cancelled", "expired"}


def input_line(name: str) -> bytes:
    body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    line = {"custom_id": name, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(line).encode() + b"\n"


def output_line(name: str) -> bytes:
    response = {"status_code": 200, "request_id": "req_1", "body": {"choices": []}}
    return json.dumps({"id": "l", "custom_id": name, "response": response, "error": None}).encode()


def timing_line(name: str, index: int) -> bytes:
    times = {"t_enq": 1_000, "t_adm": 2_000, "t_first": 3_000, "t_last": 9_000 + index}
    return json.dumps(
        {"custom_id": name, "index": index, "line": index + 1, "n_in": 5, "n_cached": 0}
        | {"n_out": 4, "ttft_ms": 0.001, "tpot_ms": 0.002, "finish_reason": "stop"}
        | times
    ).encode()


def failed_line(name: str) -> bytes:
    error = {"code": "server_error", "message": "it failed", "type": "server_error"}
    response = {"status_code": 500, "request_id": "req_1", "body": {"error": error}}
    return json.dumps({"id": "l", "custom_id": name, "response": response, "error": None}).encode()


class Past:
    """Writes what the first version wrote."""

    def __init__(self, tx: Connection, store: ObjectStore) -> None:
        self._tx = tx
        self._store = store

    def row(self, table: str, **values: Any) -> Any:
        """`values` that are SQL stand in a tuple of one."""
        literal = {k: v[0] for k, v in values.items() if isinstance(v, tuple)}
        bound = {k: v for k, v in values.items() if not isinstance(v, tuple)}
        columns = [*literal, *bound]
        marks = [*literal.values(), *(f":{name}" for name in bound)]
        query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(marks)})"
        returned = " RETURNING id" if table == "shards" else ""
        done = self._tx.execute(text(query + returned), bound)
        return done.scalar_one() if returned else None

    def everything(self) -> None:
        secret_hash = hashlib.sha256(SECRET.encode()).hexdigest()
        self.row(
            "keys", id=KEY_ID, project="default", name="old", scope="admin", secret_hash=secret_hash
        )
        self.row(
            "models",
            id="model_1",
            name="sim",
            revision=1,
            spec=json.dumps(SPEC),
            fingerprint=FINGERPRINT,
            pool="default",
        )
        self.row(
            "devices",
            id="old/CPU",
            host="old",
            device="CPU",
            pool="default",
            worker_token=TOKEN,
            lock_path="/run/old",
            state="stopped",
        )
        self.row(
            "sessions",
            id="sess_1",
            device_id="old/CPU",
            fingerprint=FINGERPRINT,
            spec=json.dumps(SPEC),
            load_s=0.5,
            ended_at=("now()",),
            end_reason="stopped",
            applied=json.dumps({"engine": "simulated", "simulated": True, "load_s": 0.5}),
        )
        data = b"".join(input_line(name) for name in NAMES)
        self._store.put("uploads/old", data)
        self.row(
            "files",
            id="file_in",
            project="default",
            purpose="batch",
            filename="in.jsonl",
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            object_key="uploads/old",
        )
        for state in STATES:
            self._job(state)

    def _job(self, state: str) -> None:
        job_id = f"batch_{state}"
        engine: dict[str, Any] = {}
        if state not in {"validating", "failed"}:
            engine = {
                "engine_spec": json.dumps(SPEC),
                "engine_fingerprint": FINGERPRINT,
                "model_id": "model_1",
                "pool": "default",
                "n_total": len(NAMES),
            }
        if state in _ENDED:
            engine |= {"n_completed": 4, "n_failed": 2, "metrics": json.dumps({"n_timed": 4})}
        if state == "failed":
            fault = {"code": "invalid_json", "message": "no JSON", "line": 3, "param": None}
            engine |= {"faults": json.dumps([fault])}
        self.row(
            "jobs",
            id=job_id,
            project="default",
            kind="generation",
            state=state,
            endpoint=CHAT,
            model="sim",
            input_file_id="file_in",
            input_key="uploads/old",
            completion_window="24h",
            expires_at=("now() + interval '1 h'",),
            metadata=json.dumps({"who": "me"}),
            **engine,
            **dict.fromkeys(STATES[state], ("now()",)),
        )
        self.row("job_events", job_id=job_id, event="created")
        if engine and state != "failed":
            self._shards(job_id, state)
        if state in _ENDED:
            sizes = {
                "output": len(joined(output_line(f"r{i}") for i in (0, 1, 3, 4))),
                "error": len(joined(failed_line(f"r{i}") for i in (2, 5))),
            }
            for section, size in sizes.items():
                file_id = f"file_{state}_{section}"
                self.row(
                    "files",
                    id=file_id,
                    project="default",
                    purpose="batch_output",
                    filename="x",
                    bytes=size,
                    sha256="",
                    job_id=job_id,
                    section=section,
                )
                self._tx.execute(
                    text(f"UPDATE jobs SET {section}_file_id = :f WHERE id = :j"),
                    {"f": file_id, "j": job_id},
                )

    def _shards(self, job_id: str, state: str) -> None:
        """The first is done, of the second two lines are written down, unless the job is over."""
        size = len(input_line("r0")) * 3
        over = state in _ENDED | {"finalizing"}
        for seq in (0, 1):
            done = over or seq == 0
            held = {"state": "done" if done else "pending"}
            if state == "running" and not done:
                held = {
                    "state": "leased",
                    "lease_token": TOKEN,
                    "holder": "old/CPU",
                    "lease_until": ("now() - interval '1 h'",),
                }
            shard = self.row(
                "shards",
                job_id=job_id,
                seq=seq,
                byte_start=seq * size,
                byte_end=(seq + 1) * size,
                first_line=seq * 3 + 1,
                first_index=seq * 3,
                n_requests=3,
                est_tokens=30,
                attempts=1,
                **held,
            )
            self._segment(job_id, shard, seq, final=done)

    def _segment(self, job_id: str, shard: int, seq: int, *, final: bool) -> None:
        first = seq * 3
        completed, failed = [first, first + 1], [first + 2] if final else []
        sections = [
            joined(output_line(f"r{i}") for i in completed),
            joined(timing_line(f"r{i}", i) for i in completed),
            joined(failed_line(f"r{i}") for i in failed),
        ]
        key = f"jobs/{job_id}/{seq:08d}-{'1' * 32}-0"
        self._store.put(key, b"".join(sections))
        self.row(
            "segments",
            job_id=job_id,
            shard_id=shard,
            final=final,
            object_key=key,
            output_indexes=completed,
            error_indexes=failed,
            output_bytes=len(sections[0]),
            timings_bytes=len(sections[1]),
            error_bytes=len(sections[2]),
            sha256="",
            n_completed=2,
            n_failed=len(failed),
            input_tokens=10,
            cached_tokens=0,
            output_tokens=8,
            session_id="sess_1",
        )


def joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


@pytest.fixture
def upgraded(database_url: str, tmp_path: Path) -> Iterator[House]:
    """A house that the first version lived in."""
    command.downgrade(config(database_url), "base")
    command.upgrade(config(database_url), "0001")
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url, broker_url="")
    store = ObjectStore.from_url(settings.store)
    engine = create_engine(database_url)
    with engine.begin() as tx:
        Past(tx, store).everything()
    engine.dispose()
    upgrade(database_url)
    database = Database(database_url)
    yield House(database, store, settings)
    database.close()


def job_of(state: str) -> JobId:
    return JobId(f"batch_{state}")


def downloaded(house: House, file_id: FileId | None) -> list[dict[str, Any]]:
    assert file_id is not None
    _, content = results.of_file(house.database, file_id, PROJECT)
    body = b"".join(content.read(house.store, 0, content.size))
    return [json.loads(line) for line in body.splitlines()]


def test_every_job_is_listed_as_it_was(upgraded: House) -> None:
    with upgraded.database.unit_of_work() as tx:
        found = {job.id: job for job in jobs.page(tx, PROJECT, limit=100)}
    assert {job_id: job.state for job_id, job in found.items()} == {
        job_of(state): JobState(state) for state in STATES
    }
    assert {OPENAI_STATUS[job.state] for job in found.values()} >= {"completed", "in_progress"}
    completed = found[job_of("completed")]
    assert (completed.counts.completed, completed.counts.failed) == (4, 2)
    assert completed.metadata == {"who": "me"}
    assert completed.metrics == {"n_timed": 4}
    assert found[job_of("failed")].faults[0].line == 3


def test_keys_models_devices_and_files_are_there(upgraded: House) -> None:
    assert keys.authenticate(upgraded.database, f"bg_{KEY_ID}_{SECRET}").name == "old"
    with upgraded.database.unit_of_work() as tx:
        assert [d.id for d in devices.every(tx)] == ["old/CPU"]
        (session,) = devices.sessions_of_job(tx, job_of("completed"))
        assert models.current(tx, "sim").fingerprint == FINGERPRINT
    assert session.id == "sess_1"
    told = manifest.manifest(upgraded.database, job_of("completed"), PROJECT)
    assert [s["id"] for s in told["sessions"]] == ["sess_1"]
    assert told["simulated"] is True


@pytest.mark.parametrize("state", sorted(_ENDED))
def test_the_files_of_jobs_that_had_ended_download(upgraded: House, state: str) -> None:
    job = upgraded.job(job_of(state))
    output = downloaded(upgraded, job.output_file_id)
    assert [line["custom_id"] for line in output] == ["r0", "r1", "r3", "r4"]
    error = downloaded(upgraded, job.error_file_id)
    assert [line["custom_id"] for line in error] == ["r2", "r5"]


def test_every_job_at_work_comes_to_its_end_with_each_line_once(upgraded: House) -> None:
    cancel.resume(upgraded.database, upgraded.bells, job_of("paused"), PROJECT)
    for state in STATES.keys() - {s.value for s in TERMINAL_JOB_STATES}:
        job = bring_to_its_end(upgraded, job_of(state))
        assert sorted(upgraded.ids(job.id)) == NAMES, state
        assert job.metrics is not None
        if state != "validating":
            kept = {line["custom_id"]: line for line in upgraded.outputs(job.id)}
            assert kept["r0"]["response"]["request_id"] == "req_1"
    assert upgraded.job(job_of("cancelling")).state is JobState.CANCELLED
    assert upgraded.job(job_of("expiring")).state is JobState.EXPIRED


def test_the_failed_lines_of_an_old_job_run_again(upgraded: House) -> None:
    retry.retry(upgraded.database, upgraded.bells, job_of("completed"), PROJECT)
    job = bring_to_its_end(upgraded, job_of("completed"))
    assert job.state is JobState.COMPLETED
    assert (job.counts.completed, job.counts.failed) == (6, 0)
    assert len(upgraded.lines(job.id, Section.TIMINGS)) == 6
