"""A whole stack, started as a user starts it, with short leases; faults are done to its
processes.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchgen.client import Client
from batchgen.client.upload import Upload
from batchgen.domain.errors import BatchgenError, Unavailable
from tests.house import chat_lines, jsonl
from tests.waiting import until

LEASE_S = 3.0
_QUICK = {
    "BATCHGEN_LEASE_S": str(LEASE_S),
    "BATCHGEN_HEARTBEAT_S": "0.5",
    "BATCHGEN_CHECKPOINT_S": "0.2",
    "BATCHGEN_POLL_S": "0.5",
    "BATCHGEN_SWEEP_S": "1",
    "BATCHGEN_DRAIN_S": "1",
    "BATCHGEN_STEP_TIMEOUT_S": "3",
    "BATCHGEN_SHARD_LINES": "50",
}
_TERMINAL = {"completed", "failed", "cancelled", "expired"}


class LiveStack:
    """The running stack: its processes by name, and a client for it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        found = json.loads((data_dir / "credentials.json").read_text())
        self.client = Client(self.state()["api_url"], found["api_key"])

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.data_dir / "run" / "stack.json").read_text())
        return state

    def pid(self, part: str) -> int:
        """The process of a part: postgres, valkey, api, control, beat, a device; or `engine`."""
        if part == "engine":
            worker = psutil.Process(self.pid("device-cpu"))
            hosts = [c for c in worker.children() if "batchgen.engines.host" in c.cmdline()]
            return hosts[0].pid
        pids = {p["name"]: p["pid"] for p in self.state()["parts"]}
        return int(pids[part])

    def start_job(self, n: int, *, model: str = "slow", **body: Any) -> str:
        """A job of `n` lines that is at work: some lines are done, some are not."""
        data = jsonl(chat_lines(n, model=model, max_tokens=16, **body))
        uploaded = self.client.upload(Upload("input.jsonl", [data], len(data)))
        job = self.client.create_job({"input_file_id": uploaded["id"], "model": model})
        until(lambda: self.job(job["id"])["counts"]["completed"] > 0)
        assert self.job(job["id"])["counts"]["completed"] < n, "the job is over too soon"
        return str(job["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as the API tells; waits while the API, or what it stands on, is away."""
        return until(lambda: self._try_job(job_id), timeout_s=60)

    def _try_job(self, job_id: str) -> dict[str, Any] | None:
        try:
            return dict(self.client.job(job_id))
        except (Unavailable, BatchgenError):
            return None

    def ended(self, job_id: str, *, timeout_s: float = 90.0) -> dict[str, Any]:
        """The job, once it has ended."""

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in _TERMINAL else None

        return until(look, timeout_s=timeout_s, every_s=0.1)

    def assert_every_line_once(self, job_id: str, n: int) -> None:
        """In the output file or the error file, as the client downloads them."""
        job = self.job(job_id)
        seen: Counter[str] = Counter()
        for part in ("results", "errors"):
            path = self.data_dir / f"{part}.jsonl"
            with path.open("wb") as out:
                self.client.download(job_id, part, out)
            lines = path.read_bytes().splitlines()
            seen.update(json.loads(line)["custom_id"] for line in lines)
        assert seen == Counter(f"r{i}" for i in range(n))
        counts = job["counts"]
        assert counts["completed"] + counts["failed"] == counts["total"] == n


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStack]:
    """One stack for all fault tests: it must have recovered after each anyway."""
    data_dir = tmp_path_factory.mktemp("stack")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BATCHGEN_")}
    command = [str(Path(sys.executable).with_name("batchgen")), "up", "--device", "CPU"]
    with (data_dir / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(data_dir), "--port", "0"],
            env=clean | _QUICK,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: _is_ready(data_dir, process), timeout_s=90)
        running = LiveStack(data_dir)
        spec = {"engine": "simulated", "max_num_seqs": 8, "step_s": 0.004}
        running.client.add_model({"name": "slow", "spec": spec})
        with running.client:
            yield running
    finally:
        process.terminate()
        assert process.wait(30) == 0


def _is_ready(data_dir: Path, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, (data_dir / "up.log").read_text()
    state = data_dir / "run" / "stack.json"
    return state.exists() and bool(json.loads(state.read_text())["ready"])
