"""`batchgen up`, `down` and `doctor`: the stack of this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchgen.cli.api_command import AsJson
from batchgen.cli.options import named_directory

if TYPE_CHECKING:
    from batchgen.local.check import Check
    from batchgen.local.state import StackState

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        parser=named_directory,
        metavar="DIR",
        help="The data directory. Default: BATCHGEN_DATA_DIR.",
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command("up")(up)
    app.command("down")(down)
    app.command("doctor")(doctor)


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it in the background, return when ready.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: BATCHGEN_HOST.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Port to listen on. Default: BATCHGEN_PORT, or a free one if that is taken.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="Serve this device (CPU, GPU.0 …); may be repeated. Default: all found."),
    ] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Start the whole service on this machine: servers, API, and a worker for each device.

    Runs until Ctrl-C, or in the background with --detach until `batchgen down`.
    """
    from batchgen.cli.connect import data_dir_flag, load_settings
    from batchgen.cli.render import note
    from batchgen.domain.errors import InvalidRequest, StackError

    settings = load_settings(data_dir)
    if device:
        from batchgen.local.devices import check_name

        for name in device:
            check_name(name, settings)
    if detach:
        from batchgen.local.credentials import credentials_path
        from batchgen.local.detached import up_detached
        from batchgen.local.loan import is_orphaned
        from batchgen.local.state import status

        already = status(settings)
        if already is not None:
            left = ", left by a command that was killed" if is_orphaned(settings) else ""
            raise StackError(
                f"a stack is up on {settings.data_dir} ({already.api_url or 'starting'}, process "
                f"{already.pid}{left}): `batchgen down{data_dir_flag(settings)}` stops it, another "
                "--data-dir makes another"
            )
        is_first = not credentials_path(settings).exists()
        running = up_detached(settings, host=host, port=port, device_names=device)
        _print_started(settings, running, is_first=is_first, as_json=json)
        return
    if json:
        raise InvalidRequest("--json goes with --detach: in the foreground `up` does not end")
    from batchgen.local.stack import up as run_stack

    run_stack(
        settings,
        host=host,
        port=port,
        device_names=device,
        report=note,
        show_key=lambda key: print(f"a new API key, an admin's: {key}", flush=True),
    )


def down(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Stop the service of this machine. Jobs go on at the next start."""
    from batchgen.cli.connect import load_settings
    from batchgen.cli.render import print_json
    from batchgen.local.detached import down as stop

    stopped = stop(load_settings(data_dir))
    if json:
        print_json({"stopped": stopped})
    else:
        print("stopped" if stopped else "nothing was up")


def doctor(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Say what is wrong with this machine's batchgen, and the mend. Exits with 1 if anything is."""
    from dataclasses import asdict

    from batchgen.cli.connect import load_settings
    from batchgen.cli.render import print_json, print_table
    from batchgen.local.doctor import checks

    found = list(checks(load_settings(data_dir)))
    if json:
        print_json([asdict(check) for check in found])
    else:
        print_table(["CHECK", "", "FOUND", "MEND"], map(_row, found))
    raise typer.Exit(1 if any(check.ok is False for check in found) else 0)


def _row(check: "Check") -> tuple[str, str, str, str]:
    if check.ok is None:
        return check.name, "-", check.detail, ""
    if check.ok:
        return check.name, "ok", check.detail, ""
    return check.name, "WRONG", check.detail, check.mend


def _print_started(settings: Any, running: "StackState", *, is_first: bool, as_json: bool) -> None:
    from batchgen.cli.render import note, print_fields, print_json
    from batchgen.local.credentials import credentials_path, read_credentials

    stored = read_credentials(settings)
    fields: Mapping[str, object] = {
        "url": running.api_url,
        "process": str(running.pid),
        "data": str(settings.data_dir),
        "logs": str(settings.log_dir),
        "key": f"kept in {credentials_path(settings)}",
    }
    if is_first and stored is not None:
        fields = {**fields, "key": stored.api_key}
    for warning in running.warnings:
        note(f"warning: {warning}")
    if as_json:
        print_json(
            {
                "api_url": running.api_url,
                "pid": running.pid,
                "data_dir": str(settings.data_dir),
                "credentials": str(credentials_path(settings)),
                "warnings": list(running.warnings),
            }
        )
    else:
        print_fields(fields)
