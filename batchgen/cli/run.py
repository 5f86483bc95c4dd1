"""`batchgen run`: from an input file to an output file in one command."""

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
    @api_command(app, "run")
    def run(
        api: Api,
        input_path: Annotated[
            str,
            typer.Argument(
                metavar="INPUT",
                help='A JSONL file (gzip and zstd too) or "-" for standard input. Lines are OpenAI '
                'batch requests, or plain: {"messages": …} or {"prompt": …} with request '
                "parameters beside them.",
            ),
        ],
        model: Annotated[
            str,
            typer.Option(
                "--model",
                "-m",
                metavar="MODEL",
                help="A registered name, or the path of an OpenVINO model directory (with a / in "
                "it, as in ./model), which is registered under its own name.",
            ),
        ],
        output: Annotated[
            str,
            typer.Option("--output", "-o", metavar="FILE", help='"-" is standard output.'),
        ] = "-",
        errors: Annotated[
            str | None,
            typer.Option(
                metavar="FILE",
                help="Where error lines go. Default: beside the output, as in out.errors.jsonl.",
            ),
        ] = None,
        endpoint: Endpoint = None,
        window: Window = "24h",
        priority: Priority = 0,
        ordering: Ordering = None,
        meta: Metadata = None,
        engine_set: EngineSet = None,
        allow_failures: AllowFailures = False,
        keep_up: Annotated[
            bool, typer.Option("--keep-up", help="Leave the stack up that this run started.")
        ] = False,
        quiet: Quiet = False,
    ) -> None:
        """Run an input through a model and write the results: one shot.

        Starts the stack if none is up, and stops it afterwards if it did. Ctrl-C asks whether the
        job shall go on.
        """
        from batchgen.cli.one_shot import Outputs, run_to_files
        from batchgen.cli.submission import Submission

        asked = Submission(
            model=model,
            endpoint=endpoint,
            window=window,
            priority=priority,
            ordering=ordering,
            metadata=texts(meta or (), "--meta"),
            engine=settings_tree(engine_set or ()),
        )
        outputs = Outputs.checked(output, errors, reads=input_path, as_json=api.as_json)
        code = run_to_files(
            api,
            input_path,
            asked,
            outputs,
            keep_up=keep_up,
            quiet=quiet,
            allow_failures=allow_failures,
        )
        raise typer.Exit(code)
