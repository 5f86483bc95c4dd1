"""`batchgen model apply` and `model diff`: all models as a file declares them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from batchgen.cli.api_command import Api, api_command

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="All models, in YAML, TOML or JSON.", exists=True, dir_okay=False
    ),
]
Prune = Annotated[bool, typer.Option("--prune", help="Retire the models that are not in it.")]

_SIGNS = {"add": "+", "change": "~", "keep": "=", "retire": "-"}


def add_to(models: typer.Typer) -> None:
    @api_command(models, "apply")
    def apply(
        api: Api,
        file: File,
        prune: Prune = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only say what would change, as `model diff`.")
        ] = False,
    ) -> None:
        """Register the models that a file declares, each as a new revision where it differs.

        All or, where one cannot be registered, none; every fault is shown with its line.
        """
        _declare(api, file, prune=prune, dry_run=dry_run)

    @api_command(models, "diff")
    def diff(api: Api, file: File, prune: Prune = False) -> None:
        """Show what `model apply` would change, by model and setting; nothing is changed."""
        _declare(api, file, prune=prune, dry_run=True)


def _declare(api: Api, path: Path, *, prune: bool, dry_run: bool) -> None:
    from batchgen.cli.fleet_file import read_fleet
    from batchgen.cli.model_fields import print_warnings
    from batchgen.cli.render import print_json
    from batchgen.domain.errors import InvalidRequest

    fleet = read_fleet(path)
    try:
        plan = api.client.apply_models({"models": fleet.models, "prune": prune, "dry_run": dry_run})
    except InvalidRequest as error:
        raise InvalidRequest(
            f"nothing was changed:\n{fleet.located(error.message)}", code=error.code
        ) from error
    if api.as_json:
        print_json(plan)
    else:
        for step in plan["data"]:
            _print_step(step)
        _print_sum(plan)
    for step in plan["data"]:
        print_warnings(step, name=step["model"])


def _print_step(step: dict[str, Any]) -> None:
    from batchgen.cli.render import printable

    deed = step["deed"]
    revision = "" if step["revision"] is None else f" (revision {step['revision']})"
    print(f"{_SIGNS[deed]} {printable(step['model'])}: {deed}{revision}")
    for change in step["changes"]:
        before, after = _text(change["before"]), _text(change["after"])
        values = after if deed == "add" else f"{before} -> {after}"
        print(f"    {change['setting']}: {values}")


def _print_sum(plan: dict[str, Any]) -> None:
    counts = dict.fromkeys(_SIGNS, 0)
    for step in plan["data"]:
        counts[step["deed"]] += 1
    words = {"add": "added", "change": "changed", "keep": "kept", "retire": "retired"}
    listed = ", ".join(f"{counts[deed]} {word}" for deed, word in words.items())
    print(listed if plan["applied"] else f"nothing was changed; it would be: {listed}")


def _text(value: Any) -> str:
    import json

    from batchgen.cli.render import printable

    return "not set" if value is None else printable(json.dumps(value, ensure_ascii=False))
