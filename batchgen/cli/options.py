"""Options that several commands share, and `key=value` pairs as typed values."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.jobs import Ordering as JobOrdering


def named_directory(text: str) -> Path:
    """A directory as given; an empty name would be the working directory, wherever that is."""
    if not text:
        raise typer.BadParameter("an empty name is no directory")
    return Path(text)


JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's id, as `batchgen list` has it.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AllowFailures = Annotated[
    bool, typer.Option("--allow-failures", help="Exit with 0 although lines failed.")
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The endpoint of all lines. Default: what the first line says, else "
        "/v1/chat/completions.",
    ),
]
Window = Annotated[
    str, typer.Option(metavar="TIME", help="How long the job may take: <n>m, <n>h or <n>d.")
]
Priority = Annotated[int, typer.Option(help="Higher ones run first, -1000 to 1000.")]
Ordering = Annotated[
    JobOrdering | None,
    typer.Option(
        help="In which order the lines run: those together that begin alike, long ones early, or "
        "as they come. Results are in input order either way. Default: prefix.",
    ),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="KEY=TEXT", help="Metadata of the job; may be repeated."),
]
EngineSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An engine setting for this job only, as in scheduler_config.max_num_seqs=16; "
        "may be repeated.",
    ),
]


def texts(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`key=text` pairs. Raises InvalidRequest for another form or a key given twice."""
    out: dict[str, str] = {}
    for pair in pairs:
        key, text = _split(pair, option)
        if key in out:
            raise InvalidRequest(f"{option} gives '{key}' twice", param=option)
        out[key] = text
    return out


def settings_tree(pairs: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """`a.b=value` pairs as nested objects; a value is JSON where it can be read so, else text.

    Raises InvalidRequest for another form, or where two pairs are in each other's way.
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, text = _split(pair, option)
        *above, last = key.split(".")
        place = out
        for name in above:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise InvalidRequest(f"{option} gives both '{name}' and '{key}'", param=option)
        if last in place:
            raise InvalidRequest(f"{option} gives '{key}' twice", param=option)
        place[last] = _typed(text)
    return out


def _split(pair: str, option: str) -> tuple[str, str]:
    key, equals, text = pair.partition("=")
    if not equals or not all(key.split(".")):
        raise InvalidRequest(f"{option} '{pair}' is not of the form key=value", param=option)
    return key, text


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
