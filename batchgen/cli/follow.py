"""Following a job to its end, and what its end means for the exit code."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchgen.cli.progress import Display, display
from batchgen.cli.rates import Rate
from batchgen.cli.render import note, printable
from batchgen.domain.states import TERMINAL_JOB_STATES

if TYPE_CHECKING:
    from batchgen.cli.api_command import Api
    from batchgen.client import Client, Event

_SHOWN_FAULTS = 10


def follow(
    client: "Client",
    job_id: str,
    *,
    quiet: bool,
    each: "Callable[[Event, Display], None] | None" = None,
) -> dict[str, Any]:
    """Show the job's progress until it has ended; returns the job. `each` sees every event.

    Says too when the server goes away and comes back, and what the job waits for in vain.
    """
    with display(quiet=quiet) as shown, client.telling(shown.say):
        warned: list[str] = []
        for event in client.events(job_id):
            if each is not None:
                each(event, shown)
            # The end is shown below, with the rate of the whole job.
            if event.name == "progress" and event.data["state"] not in TERMINAL_JOB_STATES:
                shown.show(event.data)
                warned = _warn(event.data, shown.say, warned)
        job = client.job(job_id)
        shown.show(job, _rate_of(client, job))
    return job


def say_warnings(job: Mapping[str, Any]) -> None:
    """What the job waits for in vain, on standard error."""
    _warn(job, note, [])


def _warn(job: Mapping[str, Any], say: Callable[[str], None], before: Sequence[str]) -> list[str]:
    """Say the warnings that were not there before; returns those there are."""
    texts = [printable(warning["message"]) for warning in job.get("warnings", ())]
    for text in texts:
        if text not in before:
            say(f"warning: {text}")
    return texts


def _rate_of(client: "Client", job: Mapping[str, Any]) -> Rate:
    """The rate of the whole job, as it was measured; unknown where it was not."""
    values = client.metrics(job["id"]).get("values", {}) if job["state"] == "completed" else {}
    lines, tokens = (values.get(name, {}).get("value") for name in ("req_s", "output_tok_s"))
    return Rate(lines_s=lines, tok_s=tokens)


def watch_to_end(
    api: "Api",
    job_id: str,
    *,
    quiet: bool,
    each: "Callable[[Event, Display], None] | None" = None,
) -> dict[str, Any]:
    """Follow a job that is nobody's but its own: Ctrl-C ends the looking on, and says so."""
    try:
        return follow(api.client, job_id, quiet=quiet, each=each)
    except KeyboardInterrupt:
        note(f"{job_id} goes on; `batchgen watch {job_id}{api.flags}` looks on")
        raise


def exit_code_of(job: Mapping[str, Any], *, allow_failures: bool = False) -> int:
    """0 where the job completed, and no line failed unless that is allowed; else 1."""
    failed = job["counts"]["failed"] > 0 and not allow_failures
    return 1 if failed or job["state"] != "completed" else 0


def say_faults(job: Mapping[str, Any], flags: str = "") -> None:
    """Why a job failed at validation: its first faults by line, on standard error.

    `flags` lead another command to the same server.
    """
    faults = job.get("faults") or []
    for fault in faults[:_SHOWN_FAULTS]:
        place = "the file" if fault.get("line") is None else f"line {fault['line']}"
        note(f"{place}: {printable(fault['message'])} ({fault['code']})")
    if len(faults) > _SHOWN_FAULTS:
        command = f"batchgen status {job['id']}{flags} --json"
        note(f"... and {len(faults) - _SHOWN_FAULTS} more: `{command}`")
