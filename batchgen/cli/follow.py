"""Following a job to its end, and what its end means for the exit code."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from batchgen.cli.progress import Display, display
from batchgen.cli.render import note, printable

if TYPE_CHECKING:
    from batchgen.client import Client, Event

_SHOWN_FAULTS = 10


def follow(
    client: "Client",
    job_id: str,
    *,
    quiet: bool,
    each: "Callable[[Event, Display], None] | None" = None,
) -> dict[str, Any]:
    """Show the job's progress until it has ended; returns the job. `each` sees every event."""
    with display(quiet=quiet) as shown:
        for event in client.events(job_id):
            if each is not None:
                each(event, shown)
            if event.name == "progress":
                shown.show(event.data)
        job = client.job(job_id)
        shown.show(job)
    return job


def watch_to_end(
    client: "Client",
    job_id: str,
    *,
    quiet: bool,
    each: "Callable[[Event, Display], None] | None" = None,
) -> dict[str, Any]:
    """Follow a job that is nobody's but its own: Ctrl-C ends the looking on, and says so."""
    try:
        return follow(client, job_id, quiet=quiet, each=each)
    except KeyboardInterrupt:
        note(f"{job_id} goes on")
        raise


def exit_code_of(job: Mapping[str, Any], *, allow_failures: bool = False) -> int:
    """0 where the job completed, and no line failed unless that is allowed; else 1."""
    failed = job["counts"]["failed"] > 0 and not allow_failures
    return 1 if failed or job["state"] != "completed" else 0


def say_faults(job: Mapping[str, Any]) -> None:
    """Why a job failed at validation: its first faults by line, on standard error."""
    faults = job.get("faults") or []
    for fault in faults[:_SHOWN_FAULTS]:
        place = "the file" if fault.get("line") is None else f"line {fault['line']}"
        note(f"{place}: {printable(fault['message'])} ({fault['code']})")
    if len(faults) > _SHOWN_FAULTS:
        note(f"... and {len(faults) - _SHOWN_FAULTS} more: `batchgen status {job['id']} --json`")
