"""`batchgen model add`: a model and its engine settings."""

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.spec_flags import engine_flags, parameters, values
from batchgen.domain.errors import InvalidRequest

Name = Annotated[str, typer.Argument(help="The model's name.")]


class Engine(StrEnum):
    """The engines there are."""

    OPENVINO = "openvino"
    OPENVINO_EMBEDDINGS = "openvino-embeddings"
    SIMULATED = "simulated"


def add_to(models: typer.Typer) -> None:
    flags = engine_flags()

    def add(
        api: Api,
        /,
        name: Name,
        path: Annotated[
            str | None, typer.Option("--path", metavar="DIR", help="The model directory.")
        ] = None,
        engine: Annotated[
            Engine | None, typer.Option(help="Default: openvino, or as --spec says.")
        ] = None,
        device: Annotated[
            str | None,
            typer.Option(
                help="What it runs on: CPU, GPU.1, HETERO:GPU.0,CPU … Default: any device of the "
                "pool."
            ),
        ] = None,
        pool: Annotated[str, typer.Option(help="The pool of devices that serves it.")] = "default",
        spec: Annotated[
            Path | None,
            typer.Option(
                "--spec",
                metavar="FILE",
                help="Engine settings in a JSON, TOML or YAML file; flags go over it.",
                exists=True,
                dir_okay=False,
            ),
        ] = None,
        set_: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="KEY=VALUE",
                help="Any engine setting by its place, as in draft.device=GPU.1; may be repeated.",
            ),
        ] = None,
        prompt_lookup: Annotated[
            bool,
            typer.Option(
                "--prompt-lookup",
                help="Speculate by n-gram lookup in the prompt, --num-assistant-tokens each time.",
            ),
        ] = False,
        eagle3: Annotated[
            bool, typer.Option("--eagle3", help="The same as --draft-kind eagle3.")
        ] = False,
        cache_dir: Annotated[str | None, typer.Option("--cache-dir", hidden=True)] = None,
        **settings: Any,
    ) -> None:
        """Register a model, or a new revision of it. The same settings and files again change
        nothing.
        """
        from batchgen.cli.engine_flags import spec_of
        from batchgen.cli.model_fields import fields_of, print_warnings
        from batchgen.cli.render import print_fields, print_json

        if cache_dir is not None:
            raise InvalidRequest(
                "compiled models lie in one directory of the service, which BATCHGEN_CACHE_DIR of "
                "its processes names; --no-cache goes without",
                param="--cache-dir",
            )
        given = values(flags, settings)
        _choose_speculation(given, prompt_lookup=prompt_lookup, eagle3=eagle3)
        asked = spec_of(engine and engine.value, spec, {"path": path, **given}, set_ or [])
        body = {"name": name, "spec": asked, "pool": pool, "device": device}
        model = api.client.add_model(body)
        if api.as_json:
            print_json(model)
        else:
            print_fields(fields_of(model))
        print_warnings(model)

    own = inspect.signature(add, eval_str=True)
    fixed = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    signature = own.replace(parameters=[*fixed, *parameters(flags)])
    add.__signature__ = signature  # type: ignore[attr-defined]  # what typer makes options of
    api_command(models, "add")(add)


def _choose_speculation(given: dict[str, Any], *, prompt_lookup: bool, eagle3: bool) -> None:
    """--num-assistant-tokens belongs to whichever way of speculation is chosen."""
    n_tokens = given.pop("draft.num_assistant_tokens", None)
    drafting = [name for name in given if name.startswith("draft.")]
    if eagle3:
        if given.get("draft.kind", "eagle3") != "eagle3":
            raise InvalidRequest("--eagle3 and --draft-kind name different kinds")
        if "draft.path" not in given:
            raise InvalidRequest("--eagle3 needs --draft-model-path")
        given["draft.kind"] = "eagle3"
    if prompt_lookup:
        if drafting or eagle3:
            raise InvalidRequest("--prompt-lookup goes without a draft model")
        if n_tokens is None:
            raise InvalidRequest("--prompt-lookup needs --num-assistant-tokens")
        given["prompt_lookup.num_assistant_tokens"] = n_tokens
    elif "prompt_lookup.max_ngram_size" in given:
        raise InvalidRequest("--prompt-lookup-max-ngram-size goes with --prompt-lookup")
    elif n_tokens is not None:
        if "draft.path" not in given:
            raise InvalidRequest(
                "--num-assistant-tokens goes with --draft-model-path or --prompt-lookup; in a spec "
                "file's draft, use --set draft.num_assistant_tokens"
            )
        given["draft.num_assistant_tokens"] = n_tokens
