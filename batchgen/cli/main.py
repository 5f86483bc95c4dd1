"""`batchgen`: the tree of commands, and how an error becomes one line and an exit code.

Exit codes: 0 done, 1 a line or the job failed, 2 the user can mend it, 3 a server cannot be reached
or started, 130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from batchgen.cli import (
    cache,
    demo,
    device,
    downloads,
    file,
    job_actions,
    jobs,
    key,
    metrics,
    models,
    run,
    stack,
    submit,
    worker,
)
from batchgen.cli.ending import Ended
from batchgen.domain.errors import BatchgenError, UserError

app = typer.Typer(
    name="batchgen",
    help="Turns the GPUs that you own into an offline LLM service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Tables would cut the names of long options off at 80 columns.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        import batchgen

        print(batchgen.__version__)
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    return


for group in (
    stack,
    run,
    submit,
    jobs,
    job_actions,
    downloads,
    metrics,
    models,
    device,
    cache,
    key,
    file,
    demo,
    worker,
):
    group.add_to(app)


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A lone surrogate, or a letter that this terminal lacks, is shown and does not end us.
            stream.reconfigure(errors="backslashreplace")
    code = execute(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    sys.exit(code)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        return int(app(args=list(arguments), prog_name="batchgen", standalone_mode=False) or 0)
    except typer.TyperException as error:
        if error.format_message():  # none where the help was shown instead
            _say(_usage_message(error))
        return 2
    except BatchgenError as error:
        _say(str(error))
        return 2 if isinstance(error, UserError) else 3
    except SystemExit as ending:
        # What typer makes of a broken pipe: the reader has gone, which is its right.
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        _silence_stdout()
        return 0
    except OSError as error:
        _say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 2
    except (typer.Abort, KeyboardInterrupt, Ended) as ending:
        _say(str(ending) if isinstance(ending, Ended) else "interrupted")
        return ending.exit_code if isinstance(ending, Ended) else 130


def _usage_message(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "batchgen"
    return f"{message} (see `{command} --help`)"


def _say(message: str) -> None:
    from batchgen.cli.render import printable

    with contextlib.suppress(OSError):  # the terminal may have gone
        print(f"batchgen: {printable(message)}", file=sys.stderr, flush=True)


def _silence_stdout() -> None:
    # The reader has gone (`| head`): the flush at exit must not complain about it once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
