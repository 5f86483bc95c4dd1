"""`batchgen list`, `status` and `watch`: how jobs stand."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.options import AllowFailures, JobId, Quiet

_SHOWN_FAULTS = 20


def add_to(app: typer.Typer) -> None:
    @api_command(app, "list")
    def list_jobs(
        api: Api,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
        state: Annotated[
            str | None,
            typer.Option(metavar="STATES", help="Only these, as in queued,running."),
        ] = None,
        model: Annotated[
            str | None, typer.Option("--model", "-m", metavar="NAME", help="Only of this model.")
        ] = None,
    ) -> None:
        """List jobs, the newest first."""
        from batchgen.cli.render import age, print_json, print_table

        found = api.client.jobs(limit=limit, states=state, model=model)
        if api.as_json:
            print_json(found)
            return
        print_table(
            ["JOB", "STATE", "MODEL", ">DONE", ">FAILED", "CREATED"],
            (
                (
                    job["id"],
                    job["state"],
                    job["model"],
                    _done(job["counts"]),
                    job["counts"]["failed"],
                    age(job["created_at"]),
                )
                for job in found
            ),
        )

    @api_command(app, "status")
    def status(api: Api, job_id: JobId) -> None:
        """Show a job: state, counts, usage, times, faults of its input, what it lacks to run."""
        from batchgen.cli.follow import say_warnings
        from batchgen.cli.render import print_fields, print_json

        job = api.client.job(job_id)
        if api.as_json:
            print_json(job)
            return
        print_fields(fields_of(job))
        _print_faults(job)
        say_warnings(job)

    @api_command(app, "watch")
    def watch(
        api: Api, job_id: JobId, allow_failures: AllowFailures = False, quiet: Quiet = False
    ) -> None:
        """Watch a job to its end. With --json each event is a line. Ctrl-C leaves the job alone."""
        from batchgen.cli.follow import exit_code_of, say_faults, watch_to_end
        from batchgen.cli.render import print_fields, print_json_line

        def print_event(event: Any, _shown: Any) -> None:
            print_json_line({"event": event.name, "id": event.id, "data": event.data})

        job = watch_to_end(api, job_id, quiet=quiet, each=print_event if api.as_json else None)
        if not api.as_json:
            print_fields(fields_of(job))
        say_faults(job, api.flags)
        raise typer.Exit(exit_code_of(job, allow_failures=allow_failures))


def _done(counts: Mapping[str, int]) -> str:
    return f"{counts['completed'] + counts['failed']:,}/{counts['total']:,}"


def fields_of(job: Mapping[str, Any]) -> dict[str, object]:
    """What a person wants to know of a job; times only where they have come."""
    from batchgen.cli.render import clock_time, span

    counts, usage = job["counts"], job["usage"]
    out: dict[str, object] = {
        "job": job["id"],
        "state": job["state"],
        "model": job["model"],
        "endpoint": job["endpoint"],
        "lines": f"{counts['total']:,} in all, {counts['completed']:,} completed, "
        f"{counts['failed']:,} failed, {counts['open']:,} open",
        "tokens": f"{usage['input_tokens']:,} in ({usage['cached_tokens']:,} cached), "
        f"{usage['output_tokens']:,} out",
        "pool": job["pool"],
        "priority": job["priority"],
        "ordering": job["ordering"],
    }
    if job["device"]:
        out["device"] = job["device"]
    for name, text in (job["metadata"] or {}).items():
        out[f"meta {name}"] = text
    for name in ("created", "in_progress", "paused", "cancelling", "finalizing"):
        if job[f"{name}_at"] is not None:
            out[name.replace("_", " ")] = clock_time(job[f"{name}_at"])
    ended = next((n for n in _ENDS if job[f"{n}_at"] is not None), None)
    if ended is None:
        out["expires"] = clock_time(job["expires_at"])
    else:
        took_s = job[f"{ended}_at"] - job["created_at"]
        out[ended] = f"{clock_time(job[f'{ended}_at'])}, after {span(took_s)}"
    for name in ("output_file_id", "error_file_id"):
        if job[name]:
            out[name.removesuffix("_id").replace("_", " ")] = job[name]
    return out


_ENDS = ("completed", "failed", "cancelled", "expired")


def _print_faults(job: Mapping[str, Any]) -> None:
    from batchgen.cli.render import note, print_table

    faults = job["faults"] or []
    if faults:
        print()
        print_table(
            [">LINE", "CODE", "FIELD", "FAULT"],
            (
                (f.get("line"), f["code"], f.get("param"), f["message"])
                for f in faults[:_SHOWN_FAULTS]
            ),
        )
    if len(faults) > _SHOWN_FAULTS:
        note(f"... and {len(faults) - _SHOWN_FAULTS} more; --json shows all")
