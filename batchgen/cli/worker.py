"""`batchgen worker` and `batchgen db upgrade`: parts of a service that is spread over machines."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from batchgen.cli.stack import DataDir

_MEND = "set BATCHGEN_DATABASE_URL, or start a stack with `batchgen up`"


def add_to(app: typer.Typer) -> None:
    workers = typer.Typer(
        help="Run one worker of a service that is spread over processes or machines.",
        no_args_is_help=True,
    )
    app.add_typer(workers, name="worker")
    workers.command("control")(control)
    workers.command("beat")(beat)
    workers.command("device")(device)
    database = typer.Typer(help="The database's schema.", no_args_is_help=True)
    app.add_typer(database, name="db")
    database.command("upgrade")(upgrade)


def control(data_dir: DataDir = None) -> None:
    """Run a control worker: ingest, finalize, sweep."""
    _become(["control"], data_dir)


def beat(data_dir: DataDir = None) -> None:
    """Run the clock that rings the sweep; one a service is enough, several do no harm."""
    _become(["beat"], data_dir)


def device(
    device: Annotated[
        str,
        typer.Option(
            help="The device as its engine names it: CPU, GPU, GPU.1 (`doctor` lists them)."
        ),
    ] = "CPU",
    pool: Annotated[str, typer.Option(help="The pool that the device belongs to.")] = "default",
    data_dir: DataDir = None,
) -> None:
    """Run a worker that serves one device of this machine."""
    from batchgen.cli.connect import load_settings
    from batchgen.local.devices import check_name

    check_name(device, load_settings(data_dir))
    _become(["device", "--device", device, "--pool", pool], data_dir)


def upgrade(
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Default: BATCHGEN_DATABASE_URL, else the stack that is up."
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Bring the database to the schema of this version; does nothing where it has it."""
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    from batchgen.domain.errors import InvalidRequest, Unavailable
    from batchgen.storage.migrate import is_current
    from batchgen.storage.migrate import upgrade as migrate

    url = database_url or _places(data_dir)["BATCHGEN_DATABASE_URL"]
    try:
        if is_current(url):
            print("the database has the schema of this version")
            return
        migrate(url)
    except ArgumentError as error:
        raise InvalidRequest(f"the database's URL cannot be used: {error}") from error
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise Unavailable(f"the database cannot be upgraded: {cause}") from error
    print("upgraded the database to the schema of this version")


def _become(role: list[str], data_dir: Path | None) -> None:
    """Turn this process into the worker, so that signals and exit codes are the worker's own."""
    sys.stdout.flush()
    environment = {**os.environ, **_places(data_dir)}
    command = [sys.executable, "-P", "-m", "workers", *role]
    os.execve(sys.executable, command, environment)  # noqa: S606 (no shell is wanted)


def _places(data_dir: Path | None) -> dict[str, str]:
    """Where database, broker and store are: as the environment says, else those of the stack."""
    from batchgen.cli.connect import load_settings
    from batchgen.domain.errors import Unavailable
    from batchgen.local import state

    settings = load_settings(data_dir)
    if settings.database_url:
        return {
            "BATCHGEN_DATA_DIR": str(settings.data_dir),
            "BATCHGEN_DATABASE_URL": settings.database_url,
        }
    running = state.status(settings)
    if running is None or not running.database_url:
        raise Unavailable(f"no stack is up on {settings.data_dir}: {_MEND}")
    return {
        "BATCHGEN_DATA_DIR": str(settings.data_dir),
        "BATCHGEN_DATABASE_URL": running.database_url,
        "BATCHGEN_BROKER_URL": settings.broker_url or running.broker_url,
        "BATCHGEN_STORE_URL": settings.store_url or running.store_url,
    }
