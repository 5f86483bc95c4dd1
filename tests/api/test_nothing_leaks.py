"""A prompt and a secret pass through a real server process and are in no log and no wrong place."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import httpx
import pytest
import redis

from batchgen.domain.jobs import Scope
from batchgen.services import keys
from batchgen.settings import Settings
from batchgen.storage.session import Database
from tests.conftest import Servers
from tests.house import chat_line, jsonl

CANARY = "canary-prompt-7f3a"


class Process:
    """The API as `up` runs it, its log in a file."""

    def __init__(self, settings: Settings, broker_url: str, log: Path) -> None:
        self.log = log
        bound = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        environment = {
            "BATCHGEN_DATA_DIR": str(settings.data_dir),
            "BATCHGEN_DATABASE_URL": settings.database_url,
            "BATCHGEN_BROKER_URL": broker_url,
        }
        command = ["-m", "uvicorn", "--factory", "api.app:create_app", "--fd", str(bound.fileno())]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, *command, "--no-access-log"],
                stderr=out,
                stdout=out,
                env=os.environ | environment,
                pass_fds=(bound.fileno(),),
            )
        bound.close()

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(timeout=20)


@pytest.fixture
def process(settings: Settings, servers: Servers, tmp_path: Path) -> Iterator[Process]:
    made = Process(settings, servers.broker_url, tmp_path / "api.log")
    yield made
    made.stop()


def test_prompts_and_secrets_are_in_no_log(
    process: Process, database: Database, servers: Servers
) -> None:
    _, presented = keys.create(database, name="k", scope=Scope.ADMIN)
    secret = presented.rsplit("_", 1)[1]
    headers = {"Authorization": f"Bearer {presented}"}
    with httpx.Client(base_url=process.url, headers=headers, trust_env=False, timeout=30) as client:
        made = client.post("/v1/keys", json={"name": "second"}).json()
        data = jsonl([chat_line("r0", CANARY)])
        file = client.post("/v1/files", files={"file": ("a", data)}, data={"purpose": "batch"})
        file_id = file.json()["id"]
        assert client.post("/v1/jobs", json={"input_file_id": file_id}).status_code == 200
        client.post("/v1/jobs", json={"messages": CANARY, "input_file_id": file_id})
        client.post(
            "/v1/jobs", content=f'{{"{CANARY}', headers={"Content-Type": "application/json"}
        )
        client.get(f"/v1/jobs/{CANARY}")
        client.get(f"/v1/jobs?after={CANARY}")
        client.get(f"/{CANARY}")
        client.get("/v1/jobs", headers={"Authorization": f"Bearer {presented}x"})
        client.get("/v1/jobs", headers={"Authorization": f"Bearer {CANARY}"})
        # What breaks inside is told by type and place, not by what it held.
        with database.unit_of_work() as tx:
            tx.exec_driver_sql("ALTER TABLE jobs RENAME COLUMN metadata TO gone")
        broken = client.post("/v1/jobs", json={"input_file_id": file_id, "metadata": {"k": CANARY}})
        assert (broken.status_code, CANARY in broken.text) == (500, False)
    assert process.stop() in {0, -SIGTERM}
    log = process.log.read_text()
    assert '"event": "request"' in log and '"event": "request_failed"' in log
    assert '"route": "/v1/jobs/{job_id}"' in log and '"event": "request_refused"' in log
    for told in (CANARY, secret, made["secret"].rsplit("_", 1)[1]):
        assert told not in log
    postgres_log = servers.postgres._log_path.read_text(errors="replace")
    assert CANARY not in postgres_log and secret not in postgres_log


def test_bells_carry_ids_only(process: Process, database: Database, servers: Servers) -> None:
    _, presented = keys.create(database, name="k", scope=Scope.USER)
    with httpx.Client(
        base_url=process.url, headers={"Authorization": f"Bearer {presented}"}, trust_env=False
    ) as client:
        data = jsonl([chat_line("r0", CANARY)])
        file = client.post("/v1/files", files={"file": ("a", data)}, data={"purpose": "batch"})
        body = {"input_file_id": file.json()["id"], "metadata": {"k": CANARY}}
        assert client.post("/v1/jobs", json=body).status_code == 200
    with redis.Redis.from_url(servers.valkey.redis_url) as broker:
        rung = b"".join(
            b"".join(broker.lrange(key, 0, -1))
            for key in broker.scan_iter()
            if broker.type(key) == b"list"
        )
    assert b"batchgen.ingest" in rung
    assert CANARY.encode() not in rung and presented.encode() not in rung
