"""`batchgen results`, `errors` and `timings`: a job's lines, to a file or standard output."""

from typing import TYPE_CHECKING, Annotated

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.options import JobId

if TYPE_CHECKING:
    from batchgen.client.api import Part

Output = Annotated[
    str,
    typer.Option("--output", "-o", metavar="FILE", help='Where to write; "-" is standard output.'),
]


def add_to(app: typer.Typer) -> None:
    @api_command(app, "results")
    def results(api: Api, job_id: JobId, output: Output = "-") -> None:
        """Write a job's results as JSONL in input order; of a running job, those so far."""
        _download(api, job_id, "results", output)

    @api_command(app, "errors")
    def errors(api: Api, job_id: JobId, output: Output = "-") -> None:
        """Write the error lines of a job as JSONL in input order."""
        _download(api, job_id, "errors", output)

    @api_command(app, "timings")
    def timings(api: Api, job_id: JobId, output: Output = "-") -> None:
        """Write each completed request's timings as JSONL (docs/metrics.md defines them)."""
        _download(api, job_id, "timings", output)


def _download(api: Api, job_id: str, part: "Part", output: str) -> None:
    from batchgen.cli.output_file import written
    from batchgen.cli.render import note, print_json, size

    job = api.client.job(job_id)
    with written(output) as out:
        n_bytes = api.client.download(job_id, part, out)
    if output == "-":
        return  # what was written is JSON already
    if api.as_json:
        print_json({"job": job["id"], "state": job["state"], "file": output, "bytes": n_bytes})
    else:
        note(f"wrote {size(n_bytes)} to {output} (the job is {job['state']})")
