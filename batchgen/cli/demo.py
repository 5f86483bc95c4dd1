"""`batchgen demo`: real text by a real model through the whole stack, and how good it was."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.options import Quiet


class DemoEngine(StrEnum):
    """Engines that can be asked for."""

    OPENVINO = "openvino"
    SIMULATED = "simulated"


def add_to(app: typer.Typer) -> None:
    @api_command(app, "demo")
    def demo(
        api: Api,
        requests: Annotated[
            int, typer.Option("--requests", "-n", min=1, help="How many orders.")
        ] = 500,
        engine: Annotated[DemoEngine, typer.Option(help="What computes.")] = DemoEngine.OPENVINO,
        output: Annotated[
            Path | None,
            typer.Option(
                "--output",
                "-o",
                metavar="DIR",
                help="Where the files go. Default: demo/ in the data directory.",
            ),
        ] = None,
        keep_up: Annotated[
            bool, typer.Option("--keep-up", help="Leave the stack up that the demo started.")
        ] = False,
        quiet: Quiet = False,
    ) -> None:
        """Turn customer orders into JSON with the demo model, through the whole stack.

        Registers the model, runs held-out orders with known answers, and says how many came out
        right and how fast. Starts the stack if none is up, and stops it afterwards if it did.
        """
        from batchgen.cli.demo_run import run_demo
        from batchgen.domain.errors import InvalidRequest

        if engine is DemoEngine.SIMULATED:
            raise InvalidRequest(
                "the demo does not run on the simulated engine: it computes no model, so that "
                "its answers would say nothing",
                param="--engine",
            )
        code = run_demo(api, requests, directory=output, keep_up=keep_up, quiet=quiet)
        raise typer.Exit(code)
