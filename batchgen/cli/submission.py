"""Handing in an input and making a job of it: what `submit` and `run` have in common."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchgen.cli import source
from batchgen.cli.upload_bar import sending
from batchgen.domain.requests import Endpoint

if TYPE_CHECKING:
    from batchgen.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a job is asked to be, but for its input. `endpoint` None: what the input says."""

    model: str | None
    endpoint: str | None = None
    window: str = "24h"
    priority: int = 0
    ordering: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    def body(self, file_id: str, endpoint: str | None) -> dict[str, Any]:
        return {
            "input_file_id": file_id,
            "endpoint": self.endpoint or endpoint or Endpoint.CHAT_COMPLETIONS,
            "completion_window": self.window,
            "priority": self.priority,
            **({"ordering": self.ordering} if self.ordering is not None else {}),
            **({"model": self.model} if self.model is not None else {}),
            **({"metadata": self.metadata} if self.metadata else {}),
            **({"engine": self.engine} if self.engine else {}),
        }


def submit_input(client: "Client", path: str, asked: Submission, *, quiet: bool) -> dict[str, Any]:
    """Upload the input at `path` ("-" is standard input) and create the job; returns the job."""
    with source.opened(path, endpoint=asked.endpoint) as found:
        with sending(found.upload, quiet=quiet) as progress:
            file = client.upload(found.upload, progress)
        return client.create_job(asked.body(file["id"], found.endpoint))


def submit_file(client: "Client", file_id: str, asked: Submission) -> dict[str, Any]:
    """Create a job of a file that has been uploaded before."""
    return client.create_job(asked.body(file_id, None))
