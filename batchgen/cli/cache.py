"""`batchgen cache`: compiled models, kept for the next start."""

import re
from typing import Annotated, Any

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.domain.errors import InvalidRequest

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def add_to(app: typer.Typer) -> None:
    caches = typer.Typer(help="Compiled models, kept for the next start.", no_args_is_help=True)
    app.add_typer(caches, name="cache")

    @api_command(caches, "list")
    def list_caches(api: Api) -> None:
        """List what is kept: of which model, for which device, whether it is still of use."""
        from batchgen.cli.render import print_json

        found = api.client.caches()
        if api.as_json:
            print_json(found)
        else:
            _print(found)

    @api_command(caches, "prune")
    def prune(
        api: Api,
        max_size: Annotated[
            str | None,
            typer.Option(
                "--max-size",
                metavar="SIZE",
                help="Remove what was not used for longest until each directory has at most this "
                "size, as in 10GB.",
            ),
        ] = None,
        older_than: Annotated[
            str | None,
            typer.Option(
                "--older-than",
                metavar="TIME",
                help="Remove what was not used for so long: <n>m, <n>h or <n>d.",
            ),
        ] = None,
        stale: Annotated[
            bool, typer.Option("--stale", help="Remove what is of no use any more.")
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only say what would be removed.")
        ] = False,
    ) -> None:
        """Remove what is kept. What an engine uses, or writes, stays."""
        from batchgen.cli.render import note, print_json, size

        if max_size is None and older_than is None and not stale:
            raise InvalidRequest("say what to remove: --max-size, --older-than or --stale")
        body = {
            "max_bytes": None if max_size is None else size_in_bytes(max_size),
            "older_than_s": None if older_than is None else _seconds(older_than),
            "stale": stale,
            "dry_run": dry_run,
        }
        gone = api.client.prune_caches(body)
        if api.as_json:
            print_json(gone)
            return
        _print(gone["data"])
        what = f"{len(gone['data'])} with {size(gone['bytes'])}"
        if dry_run:
            note(f"would be removed: {what}")
        else:
            note(f"removed within seconds, by the workers that reach them: {what}")


def size_in_bytes(written: str) -> int:
    """`10GB`, `500 MB`, `1000`. Raises InvalidRequest."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)B?", written.upper())
    if match is None:
        raise InvalidRequest(
            f"--max-size '{written}' is no size: 500MB and 10GB are", param="--max-size"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _print(found: list[dict[str, Any]]) -> None:
    from batchgen.cli.render import ago, print_table, size

    print_table(
        ["CACHE", "MODEL", "DEVICE", "DRIVER", "OPENVINO", "SIZE", "USED", "HOST", "STATE"],
        (
            (
                c["id"].partition("/")[2] or c["id"],
                ", ".join(c["models"]) or c["model_path"],
                c["device"],
                ", ".join(sorted({d["driver"] for d in c["devices"]})),
                c["libraries"].get("openvino", "").partition("-")[0],
                size(c["bytes"]),
                ago(c["unused_s"]),
                c["host"],
                _state(c),
            )
            for c in found
        ),
    )


def _state(cache: dict[str, Any]) -> str:
    if cache["leaving"]:
        return "being removed"
    if cache["writer"]:
        return f"written by {cache['writer']}"
    if cache["in_use_by"]:
        return f"in use by {', '.join(cache['in_use_by'])}"
    if cache["stale"]:
        return f"stale: {cache['stale']}"
    return ": ".join(filter(None, (cache["state"], cache["reason"])))


def _seconds(written: str) -> int:
    from batchgen.domain.window import window_seconds

    try:
        return window_seconds(written)
    except InvalidRequest:
        raise InvalidRequest(
            f"--older-than '{written}' is not of the form <n>m, <n>h or <n>d", param="--older-than"
        ) from None
