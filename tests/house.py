"""A small house to test in: real database, real object store, real engine hosts; jobs in a line or
two.
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import batchgen.demo
from batchgen.dispatch import NoBells
from batchgen.domain.clock import SystemClock
from batchgen.domain.ids import JobId, Project, new_file_id
from batchgen.domain.jobs import Job, Section
from batchgen.services import finalize, ingest, models, submit
from batchgen.settings import Settings
from batchgen.storage import files, jobs, segments
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from workers.context import Context
from workers.device import DeviceWorker

PROJECT = Project("default")
CHAT = "/v1/chat/completions"
MODEL = "sim"
MODELS = Path(batchgen.demo.__file__).parent / "models"


def chat_line(custom_id: str, content: str, *, model: str = MODEL, **body: Any) -> dict[str, Any]:
    """One input line that asks for 8 tokens, unless `body` says otherwise."""
    asked = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": asked | body}


def chat_lines(n: int, *, start: int = 0, **body: Any) -> list[dict[str, Any]]:
    """Lines r0, r1, … that say `say 0.`, `say 1.`, …: the dot keeps 1 from being part of 10."""
    return [chat_line(f"r{i}", f"say {i}.", **body) for i in range(start, start + n)]


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class House:
    """What a test needs of the service, without its processes."""

    def __init__(self, database: Database, store: ObjectStore, settings: Settings) -> None:
        self.database = database
        self.store = store
        self.settings = settings
        self.bells = NoBells()

    def register(self, name: str = MODEL, **spec: Any) -> None:
        """A simulated model, unless `spec` names another engine."""
        asked = {"engine": "simulated"} | spec
        models.register(self.database, self.settings, name=name, spec=asked)

    def upload(self, data: bytes) -> str:
        file_id = new_file_id()
        key = f"uploads/{uuid.uuid4().hex}"
        stored = self.store.put(key, data)
        with self.database.unit_of_work() as tx:
            files.insert_uploaded(
                tx,
                file_id=file_id,
                project=PROJECT,
                purpose="batch",
                filename="in.jsonl",
                size=len(data),
                sha256=stored.sha256,
                object_key=key,
            )
        return file_id

    def submit(self, data: bytes | Sequence[dict[str, Any]], **asked: Any) -> Job:
        """A job in validation."""
        body = data if isinstance(data, bytes) else jsonl(data)
        asked = {"project": PROJECT, "input_file_id": self.upload(body)} | asked
        return submit.submit(self.database, self.bells, self.settings, submit.Submission(**asked))

    def queue(self, data: bytes | Sequence[dict[str, Any]], **asked: Any) -> Job:
        """A job that has been through ingest."""
        job = self.submit(data, **asked)
        self.ingest(job.id)
        return self.job(job.id)

    def ingest(self, job_id: JobId) -> None:
        ingest.run_once(self.database, self.store, self.bells, self.settings, job_id)

    def worker(self, device: str = "CPU", pool: str = "default") -> DeviceWorker:
        """A device worker that has taken its device; `leave` it at the end."""
        context = Context(self.settings, self.database, self.store, self.bells, SystemClock())
        made = DeviceWorker(context, device, pool)
        made.start()
        return made

    def finalize(self, job_id: JobId) -> None:
        finalize.run_once(self.database, self.store, self.settings, job_id)

    def run(self, data: bytes | Sequence[dict[str, Any]], **asked: Any) -> Job:
        """A job from its lines to its end."""
        job = self.queue(data, **asked)
        worker = self.worker()
        try:
            worker.serve()
        finally:
            worker.leave()
        self.finalize(job.id)
        return self.job(job.id)

    def job(self, job_id: JobId) -> Job:
        with self.database.unit_of_work() as tx:
            return jobs.get(tx, job_id)

    def lines(self, job_id: JobId, section: Section) -> list[dict[str, Any]]:
        """The records of a section of the final segments, in order."""
        with self.database.unit_of_work() as tx:
            final = segments.of_job(tx, job_id, final_only=True)
        out = []
        for segment in final:
            start, end = segment.span(section)
            if end > start:
                body = self.store.get_range(segment.draft.object_key, start, end)
                out += [json.loads(line) for line in body.split(b"\n")[:-1]]
        return out

    def outputs(self, job_id: JobId) -> list[dict[str, Any]]:
        return self.lines(job_id, Section.OUTPUT)

    def errors(self, job_id: JobId) -> list[dict[str, Any]]:
        return self.lines(job_id, Section.ERROR)

    def ids(self, job_id: JobId) -> list[str]:
        """The custom ids in both files."""
        records = [*self.outputs(job_id), *self.errors(job_id)]
        return [record["custom_id"] for record in records]

    def texts(self, job_id: JobId) -> dict[str, str]:
        """What each completed chat line answered."""
        return {
            record["custom_id"]: record["response"]["body"]["choices"][0]["message"]["content"]
            for record in self.outputs(job_id)
        }

    def codes(self, job_id: JobId) -> dict[str, str]:
        """Why each failed line failed."""
        return {
            record["custom_id"]: (
                record["error"]["code"]
                if record["response"] is None
                else record["response"]["body"]["error"]["code"]
            )
            for record in self.errors(job_id)
        }

    def log_of_engine(self) -> str:
        return "".join(p.read_text() for p in Path(self.settings.log_dir).glob("engine-*.log"))
