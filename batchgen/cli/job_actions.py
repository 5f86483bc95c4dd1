"""`batchgen cancel`, `pause`, `resume` and `retry`."""

from typing import TYPE_CHECKING

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.options import JobId

if TYPE_CHECKING:
    from batchgen.client.api import Action


def add_to(app: typer.Typer) -> None:
    @api_command(app, "cancel")
    def cancel(api: Api, job_id: JobId) -> None:
        """Cancel a job. What has been finished stays; the rest goes to the error file."""
        _act(api, job_id, "cancel")

    @api_command(app, "pause")
    def pause(api: Api, job_id: JobId) -> None:
        """Pause a job. Its expiry clock stops too."""
        _act(api, job_id, "pause")

    @api_command(app, "resume")
    def resume(api: Api, job_id: JobId) -> None:
        """Let a paused job go on."""
        _act(api, job_id, "resume")

    @api_command(app, "retry")
    def retry(api: Api, job_id: JobId) -> None:
        """Run the failed lines of an ended job again; what completed stays."""
        _act(api, job_id, "retry")


def _act(api: Api, job_id: str, action: "Action") -> None:
    from batchgen.cli.render import print_json

    job = api.client.act(job_id, action)
    if api.as_json:
        print_json(job)
    else:
        print(f"{job['id']} {job['state']}")
