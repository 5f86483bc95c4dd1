"""What `run` does: model, stack, job, progress, files, and what becomes of it at Ctrl-C."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer

from batchgen.cli.api_command import Api
from batchgen.cli.borrowed_stack import Stack, stack_for
from batchgen.cli.ending import Ended
from batchgen.cli.follow import exit_code_of, follow, say_faults
from batchgen.cli.output_file import STDOUT, check_output, written
from batchgen.cli.render import note, print_json, span
from batchgen.cli.source import check_input
from batchgen.cli.submission import Submission, submit_input
from batchgen.domain.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from batchgen.client import Client

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results and error lines go; "-" is standard output, None for errors is nowhere."""

    results: str
    errors: str | None

    @classmethod
    def checked(cls, results: str, errors: str | None, *, reads: str, as_json: bool) -> Self:
        """Raises InvalidRequest where they cannot be written, or would overwrite the input."""
        if as_json and results == STDOUT:
            raise InvalidRequest("--json prints the job: give a file for the results with -o")
        errors = errors or _beside(results)
        if errors is not None and errors == results:
            raise InvalidRequest("results and errors cannot both go to the same place")
        check_output(results, reads=reads)
        if errors is not None:
            check_output(errors, reads=reads)
        return cls(results, errors)


def run_to_files(
    api: Api,
    input_path: str,
    asked: Submission,
    outputs: Outputs,
    *,
    keep_up: bool,
    quiet: bool,
    allow_failures: bool,
) -> int:
    """Run the input to its end and write the files; returns the exit code."""
    # What can be known to fail must not cost the start of a stack.
    check_input(input_path)
    _check_path(asked.model or "")
    with stack_for(api, keep_up=keep_up, quiet=quiet) as stack:
        name = _model_name(api.client, asked.model or "", quiet=quiet)
        job = submit_input(api.client, input_path, replace(asked, model=name), quiet=quiet)
        interrupted = False
        try:
            job = follow(api.client, job["id"], quiet=quiet)
        except Ended:
            if stack.keep:
                _say_how_to_go_on(api, job["id"], outputs, stack)
            raise
        except KeyboardInterrupt:
            interrupted = True
            if _shall_go_on(job["id"]):
                _say_how_to_go_on(api, job["id"], outputs, stack)
                return INTERRUPTED
            api.client.act(job["id"], "cancel")
            job = follow(api.client, job["id"], quiet=quiet)
        _write(api.client, job, outputs)
        _report(api, job, outputs, stack, quiet=quiet)
        return INTERRUPTED if interrupted else exit_code_of(job, allow_failures=allow_failures)


def _model_name(client: "Client", model: str, *, quiet: bool) -> str:
    """The registered name; a directory is registered first. Raises NotFound naming the mend."""
    path = Path(model).expanduser()
    if "/" in model and path.is_dir():
        path = path.resolve()
        spec = {"engine": "openvino", "path": str(path)}
        added = client.add_model({"name": path.name, "spec": spec})
        if not quiet:
            note(f"model {added['id']}, revision {added['revision']}, from {path}")
        return str(added["id"])
    try:
        return str(client.model(model)["id"])
    except NotFound as error:
        if path.is_dir():
            mend = f"for the directory of this name write -m ./{model}"
        else:
            also = f", and no directory {path} either" if "/" in model else ""
            mend = f"`batchgen model list` has those there are, `batchgen model add` adds one{also}"
        raise NotFound(f"no model '{model}': {mend}", param="model") from error


def _check_path(model: str) -> None:
    """Raises NotFound for what can only be meant as a path, where no directory is."""
    path = Path(model).expanduser()
    if model.startswith(("/", "./", "../", "~")) and not path.is_dir():
        what = "is no directory" if path.exists() else "does not exist"
        raise NotFound(
            f"the model directory {model} {what}: give the path of an OpenVINO model directory, or "
            "a registered name (`batchgen model list` has those)",
            param="model",
        )


def _shall_go_on(job_id: str) -> bool:
    """Ask the person at the terminal; where there is none, or at a second Ctrl-C, it goes on."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    try:
        return typer.confirm(f"\nShall {job_id} go on in the background?", default=True, err=True)
    except typer.Abort:
        note("")
        return True


def _say_how_to_go_on(api: Api, job_id: str, outputs: Outputs, stack: Stack) -> None:
    stack.keep = True
    flags = api.flags
    note(f"{job_id} goes on. To watch it, get its results, or cancel it:")
    note(f"  batchgen watch {job_id}{flags}")
    note(f"  batchgen results {job_id} -o {outputs.results}{flags}")
    note(f"  batchgen cancel {job_id}{flags}")
    if stack.started_here:
        note(f"The stack stays up for it; `batchgen down{flags}` stops it.")


def _write(client: "Client", job: dict[str, Any], outputs: Outputs) -> None:
    if job["state"] == "failed":
        return  # nothing was run; what is wrong with the input is said line by line
    with written(outputs.results) as out:
        client.download(job["id"], "results", out)
    if outputs.errors is None:
        return
    # An error file of an earlier run must not be taken for this one's.
    if job["counts"]["failed"] or Path(outputs.errors).exists():
        with written(outputs.errors) as out:
            if job["counts"]["failed"]:
                client.download(job["id"], "errors", out)


def _report(api: Api, job: dict[str, Any], outputs: Outputs, stack: Stack, *, quiet: bool) -> None:
    counts = job["counts"]
    say_faults(job, api.flags)
    if api.as_json:
        print_json(job)
    if quiet and not counts["failed"] and job["state"] != "failed":
        return
    if job["state"] == "failed":
        note("failed: the input has faults, nothing was run")
        return
    note(
        f"{job['state']}: {counts['completed']:,} of {counts['total']:,} lines completed, "
        f"{counts['failed']:,} failed, {job['usage']['output_tokens']:,} tokens out"
        f"{_took(job)}"
    )
    if counts["completed"] and outputs.results != STDOUT:
        note(f"results: {outputs.results}")
    if counts["failed"]:
        note(f"errors:  {outputs.errors or _how_to_see_errors(api, job['id'], stack)}")
        common = api.client.metrics(job["id"])["commonest_error"]
        if common is not None:
            note(f"mostly:  {common['code']}: {common['message']}")


def _how_to_see_errors(api: Api, job_id: str, stack: Stack) -> str:
    command = f"`batchgen errors {job_id}{api.flags}`"
    if stack.keep:
        return f"{command} shows them"
    return (
        f"`batchgen up --detach{api.flags}`, then {command} shows them; "
        "with --errors FILE a run writes them"
    )


def _took(job: dict[str, Any]) -> str:
    if job["completed_at"] is None:
        return ""
    return f", in {span(job['completed_at'] - job['created_at'])}"


def _beside(output: str) -> str | None:
    """out.jsonl -> out.errors.jsonl; nothing is beside standard output."""
    if output == STDOUT:
        return None
    path = Path(output)
    return str(path.with_name(f"{path.stem}.errors{path.suffix or '.jsonl'}"))
