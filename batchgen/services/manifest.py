"""What a job really used: the pinned model, the configuration asked for and as applied, the
machines.
"""

import platform
from typing import Any

import batchgen
from batchgen.domain.ids import JobId, Project
from batchgen.storage import devices, files, jobs
from batchgen.storage.session import Database


def manifest(database: Database, job_id: JobId, project: Project) -> dict[str, Any]:
    """The job's manifest as JSON; of a running job, as far as it is known. Raises NotFound."""
    with database.unit_of_work() as tx:
        job = jobs.get(tx, job_id, project=project)
        sessions = devices.sessions_of_job(tx, job_id)
        source = files.sha256_of(tx, job.input_file_id)
    return {
        "job": job.id,
        "batchgen": batchgen.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "endpoint": job.endpoint,
        "model": job.model,
        "model_id": job.model_id,
        "overrides": dict(job.overrides),
        "ordering": job.ordering,
        "engine_requested": job.engine_spec,
        "engine_fingerprint": job.engine_fingerprint,
        "workload_sha256": source,
        "simulated": any(bool(session.applied.get("simulated")) for session in sessions),
        "sessions": [
            {
                "id": session.id,
                "device": session.device_id,
                "engine_bound": session.spec,
                "applied": session.applied,
                "started_at": session.started_at.isoformat(),
                "ended_at": None if session.ended_at is None else session.ended_at.isoformat(),
                "end_reason": session.end_reason,
            }
            for session in sessions
        ],
    }
