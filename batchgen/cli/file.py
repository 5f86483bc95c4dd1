"""`batchgen file`: looking at an input file without a server."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchgen.cli.api_command import AsJson
from batchgen.cli.options import Endpoint

if TYPE_CHECKING:
    from batchgen.domain.jobs import Fault

_CHUNK = 1 << 20
_LONGEST_HEAD = 8 << 20
_SHOWN = 100

InputFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="A JSONL file (gzip and zstd too).", exists=True, dir_okay=False
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="NAME", help="The model that the job will name. Default: none."
    ),
]


def add_to(app: typer.Typer) -> None:
    files = typer.Typer(help="Look at an input file, without a server.", no_args_is_help=True)
    app.add_typer(files, name="file")
    files.command("validate")(validate)
    files.command("stats")(stats)


def validate(
    path: InputFile, endpoint: Endpoint = None, model: Model = None, json: AsJson = False
) -> None:
    """Find the faults that would fail a whole job, and the requests that would fail alone.

    Exits with 1 if there are any. Prompts that are too long for a model are found only by it.
    """
    from dataclasses import asdict

    from batchgen.cli.connect import load_settings
    from batchgen.cli.render import note, print_json
    from batchgen.formats.check import check_file
    from batchgen.formats.cutting import Limits

    settings = load_settings()
    report = check_file(
        lambda: batch_chunks(path, max_bytes=settings.max_file_bytes, endpoint=endpoint),
        endpoint=endpoint,
        model=model,
        limits=Limits.of(settings),
        max_output_tokens=settings.max_output_tokens,
    )
    if json:
        print_json({"valid": report.is_valid, **asdict(report)})
    elif report.faults:
        _print_faults("the job would fail at validation:", report.faults, len(report.faults))
        if report.endpoint_line is not None and any(
            f.code == "url_mismatch" for f in report.faults
        ):
            note(
                f"the endpoint is {report.endpoint}, as line {report.endpoint_line} says; "
                "--endpoint names another"
            )
    else:
        named = f", all for model {report.model}" if report.model else ""
        print(f"valid: {report.n_requests:,} requests in {report.n_lines:,} lines{named}")
        if report.n_failing:
            title = f"but {report.n_failing:,} of them would fail:"
            _print_faults(title, report.failures, report.n_failing)
    raise typer.Exit(1 if report.faults or report.n_failing else 0)


def stats(path: InputFile, json: AsJson = False) -> None:
    """Count a file's lines, models and endpoints, and how its sizes are distributed."""
    from dataclasses import asdict

    from batchgen.cli.connect import load_settings
    from batchgen.cli.render import print_fields, print_json, print_table
    from batchgen.formats.stats import file_stats

    settings = load_settings()
    chunks = batch_chunks(path, max_bytes=settings.max_file_bytes, mixed=True)
    found = file_stats(chunks, max_line_bytes=settings.max_line_bytes)
    if json:
        print_json(asdict(found))
        return
    print_fields(
        {
            "bytes": found.n_bytes,
            "lines": found.n_lines,
            "blank lines": found.n_blank,
            "unreadable lines": found.n_unreadable,
            "requests": found.n_requests,
            "endpoints": _named(found.endpoints),
            "models": _named(found.models),
        }
    )
    spreads = {
        "line bytes": found.line_bytes,
        "prompt characters": found.prompt_chars,
        "prompt token ids": found.prompt_tokens,
        "max_tokens": found.max_tokens,
    }
    print_table(
        ["OVER LINES", ">N", ">TOTAL", ">MIN", ">MEAN", ">MEDIAN", ">P99", ">MAX"],
        (
            (name, s.n, s.total, s.least, s.mean, s.median, s.p99, s.most)
            for name, s in spreads.items()
            if s.n
        ),
    )


def batch_chunks(
    path: Path, *, max_bytes: int, endpoint: str | None = None, mixed: bool = False
) -> Iterable[bytes]:
    """The file as the server would get it: uncompressed, plain lines wrapped.

    Raises InvalidRequest for a plain line that is not for `endpoint` (None: the first one's),
    unless they may be `mixed`.
    """
    from batchgen.cli.plain_lines import first_line, form_of, wrapped
    from batchgen.formats.decompress import decompressed

    if form_of(first_line(_chunks_of(path), longest=_LONGEST_HEAD)).plain:
        return wrapped(_chunks_of(path), endpoint=endpoint, mixed=mixed)
    return decompressed(_chunks_of(path), max_bytes=max_bytes)


def _chunks_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def _print_faults(title: str, faults: "tuple[Fault, ...]", n_all: int) -> None:
    from batchgen.cli.render import note, print_table

    note(title)
    print_table(
        [">LINE", "CODE", "FIELD", "FAULT"],
        ((f.line, f.code, f.param, f.message) for f in faults[:_SHOWN]),
    )
    if n_all > _SHOWN:
        note(f"... and {n_all - _SHOWN:,} more; --json shows up to 1,000")


def _named(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {number:,}" for name, number in counts.items())
