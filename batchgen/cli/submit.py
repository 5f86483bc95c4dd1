"""`batchgen submit`."""

from pathlib import Path
from typing import Annotated

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.options import (
    AllowFailures,
    Endpoint,
    EngineSet,
    Metadata,
    Ordering,
    Priority,
    Quiet,
    Window,
    settings_tree,
    texts,
)


def add_to(app: typer.Typer) -> None:
    @api_command(app, "submit")
    def submit(
        api: Api,
        input_path: Annotated[
            str,
            typer.Argument(
                metavar="INPUT",
                help='A JSONL file (gzip and zstd too), "-" for standard input, or the id of an '
                "uploaded file. Lines are OpenAI batch requests, or plain: "
                '{"messages": …} or {"prompt": …} with request parameters beside them.',
            ),
        ],
        model: Annotated[
            str | None,
            typer.Option(
                "--model", "-m", metavar="NAME", help="A registered model. Default: the lines'."
            ),
        ] = None,
        endpoint: Endpoint = None,
        window: Window = "24h",
        priority: Priority = 0,
        ordering: Ordering = None,
        meta: Metadata = None,
        engine_set: EngineSet = None,
        watch: Annotated[bool, typer.Option("--watch", "-w", help="Watch it to its end.")] = False,
        allow_failures: AllowFailures = False,
        quiet: Quiet = False,
    ) -> None:
        """Upload an input and submit it as a job. Prints the job's id."""
        from batchgen.cli.follow import exit_code_of, say_faults, say_warnings, watch_to_end
        from batchgen.cli.render import note, print_json
        from batchgen.cli.submission import Submission, submit_file, submit_input
        from batchgen.domain.errors import InvalidRequest

        if engine_set and model is None:
            raise InvalidRequest(
                "--set changes the engine settings of a model: name that with --model",
                param="--set",
            )
        asked = Submission(
            model=model,
            endpoint=endpoint,
            window=window,
            priority=priority,
            ordering=ordering,
            metadata=texts(meta or (), "--meta"),
            engine=settings_tree(engine_set or ()),
        )
        if input_path.startswith("file-") and not Path(input_path).exists():
            job = submit_file(api.client, input_path, asked)
        else:
            job = submit_input(api.client, input_path, asked, quiet=quiet)
        if not watch:
            if api.as_json:
                print_json(job)
            else:
                print(job["id"])
                if not quiet:
                    note(f"submitted; `batchgen watch {job['id']}{api.flags}` shows its progress")
                    say_warnings(job)
            return
        if not api.as_json:
            print(job["id"], flush=True)
        job = watch_to_end(api, job["id"], quiet=quiet)
        say_faults(job, api.flags)
        if api.as_json:
            print_json(job)
        raise typer.Exit(exit_code_of(job, allow_failures=allow_failures))
