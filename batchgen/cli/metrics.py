"""`batchgen metrics` and `manifest`: how fast a job was, and what it really used."""

from collections.abc import Mapping
from typing import Any

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.options import JobId

# What people ask for first; the others follow by name, and what was not measured comes last.
_FIRST = (
    "makespan_s",
    "output_tok_s",
    "steady_output_tok_s",
    "total_tok_s",
    "req_s",
    "error_rate",
    "ttft_ms",
    "tpot_ms",
    "decode_tok_s",
    "prefill_tok_s",
    "queue_s",
    "e2e_s",
)


def add_to(app: typer.Typer) -> None:
    @api_command(app, "metrics")
    def metrics(api: Api, job_id: JobId) -> None:
        """Show a job's metrics. What cannot be measured says why (docs/metrics.md defines each).

        A job is measured when it ends. Before that there are none, which is no failure: exit code
        0, and an empty object with --json.
        """
        from batchgen.cli.render import print_json

        found = api.client.metrics(job_id)
        if api.as_json:
            print_json(found)
        else:
            print_metrics(found)

    @api_command(app, "manifest")
    def manifest(api: Api, job_id: JobId) -> None:
        """Print what a job really used: model, engine settings as applied, machines (JSON)."""
        from batchgen.cli.render import print_json

        print_json(api.client.manifest(job_id))


def print_metrics(found: Mapping[str, Any]) -> None:
    """Single values, then the distributions over requests."""
    from batchgen.cli.render import note, print_table

    if not found:
        note("no metrics: a job is measured when its lines have been run")
        return
    if found["simulated"]:
        note("simulated: a scripted engine made these figures, no model was computed")
    print_table(
        ["METRIC", ">VALUE", "UNIT", "WHY NOT"],
        (
            (name, value["value"], value["unit"], value["reason"] or "")
            for name, value in _ordered(found["values"])
        ),
    )
    quantiles = ("mean", "p50", "p90", "p95", "p99", "max")
    print_table(
        ["PER REQUEST", "UNIT", ">N", *(f">{q.upper()}" for q in quantiles)],
        (
            (name, d["unit"], d["n"], *(d.get(q) for q in quantiles))
            for name, d in _ordered(found["distributions"])
        ),
    )


def _ordered(metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    def place(item: tuple[str, Any]) -> tuple[bool, int, str]:
        name, found = item
        rank = _FIRST.index(name) if name in _FIRST else len(_FIRST)
        return found["reason"] is not None, rank, name

    return sorted(metrics.items(), key=place)
