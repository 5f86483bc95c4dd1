"""`batchgen model add`: a model and its engine settings."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.domain.errors import InvalidRequest

_MEMORY, _BATCH, _SPECULATION = "KV cache and compilation", "Batching", "Speculative decoding"

Name = Annotated[str, typer.Argument(help="The model's name.")]


class Engine(StrEnum):
    """The engines there are."""

    OPENVINO = "openvino"
    SIMULATED = "simulated"


class KvPrecision(StrEnum):
    """The element types of a KV cache."""

    U8 = "u8"
    U4 = "u4"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"


def add_to(models: typer.Typer) -> None:
    @api_command(models, "add")
    def add(
        api: Api,
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
                help="Serve it only on this device (CPU, GPU.0 …). Default: any of the pool."
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
                help="Any engine setting, as in scheduler_config.cache_interval_multiplier=2; "
                "may be repeated. docs/reference/engine-openvino.md lists them.",
            ),
        ] = None,
        max_model_len: Annotated[
            int | None, typer.Option(help="Tokens of prompt and answer together.")
        ] = None,
        max_num_batched_tokens: Annotated[
            int | None, typer.Option(help="Tokens in a step.", rich_help_panel=_BATCH)
        ] = None,
        max_num_seqs: Annotated[
            int | None, typer.Option(help="Sequences in a step.", rich_help_panel=_BATCH)
        ] = None,
        dynamic_split_fuse: Annotated[
            bool | None,
            typer.Option(
                "--dynamic-split-fuse/--no-dynamic-split-fuse",
                help="Split long prompts over steps.",
                rich_help_panel=_BATCH,
            ),
        ] = None,
        num_kv_blocks: Annotated[
            int | None,
            typer.Option(help="Size of the KV cache in blocks.", rich_help_panel=_MEMORY),
        ] = None,
        cache_size: Annotated[
            int | None, typer.Option(help="Size of the KV cache in GB.", rich_help_panel=_MEMORY)
        ] = None,
        kv_cache_precision: Annotated[
            KvPrecision | None,
            typer.Option(help="Element type of the KV cache.", rich_help_panel=_MEMORY),
        ] = None,
        enable_prefix_caching: Annotated[
            bool | None,
            typer.Option(
                "--enable-prefix-caching/--no-enable-prefix-caching",
                help="Share the KV cache of equal prompt beginnings.",
                rich_help_panel=_MEMORY,
            ),
        ] = None,
        cache: Annotated[
            bool | None,
            typer.Option(
                "--cache/--no-cache",
                help="Keep the compiled model for the next start.",
                rich_help_panel=_MEMORY,
            ),
        ] = None,
        runtime_config: Annotated[
            str | None,
            typer.Option(metavar="JSON", help="OpenVINO properties.", rich_help_panel=_MEMORY),
        ] = None,
        draft_model_path: Annotated[
            str | None,
            typer.Option(metavar="DIR", help="A draft model.", rich_help_panel=_SPECULATION),
        ] = None,
        draft_device: Annotated[
            str | None, typer.Option(help="The draft model's device.", rich_help_panel=_SPECULATION)
        ] = None,
        num_assistant_tokens: Annotated[
            int | None,
            typer.Option(help="Tokens proposed at once.", rich_help_panel=_SPECULATION),
        ] = None,
        prompt_lookup: Annotated[
            bool,
            typer.Option(
                "--prompt-lookup",
                help="Propose tokens by n-gram lookup in the prompt, without a draft model.",
                rich_help_panel=_SPECULATION,
            ),
        ] = False,
    ) -> None:
        """Register a model, or a new revision of it. The same settings again change nothing."""
        from batchgen.cli.engine_flags import json_object, spec_of
        from batchgen.cli.model_fields import fields_of
        from batchgen.cli.render import print_fields, print_json

        flags: dict[str, Any] = {
            "path": path,
            "max_model_len": max_model_len,
            "kv_cache_precision": None if kv_cache_precision is None else kv_cache_precision.value,
            "cache": cache,
            "runtime_config": None
            if runtime_config is None
            else json_object(runtime_config, "--runtime-config"),
            "scheduler_config.max_num_batched_tokens": max_num_batched_tokens,
            "scheduler_config.max_num_seqs": max_num_seqs,
            "scheduler_config.dynamic_split_fuse": dynamic_split_fuse,
            "scheduler_config.num_kv_blocks": num_kv_blocks,
            "scheduler_config.cache_size": cache_size,
            "scheduler_config.enable_prefix_caching": enable_prefix_caching,
            **_speculation(draft_model_path, draft_device, num_assistant_tokens, prompt_lookup),
        }
        asked = spec_of(None if engine is None else engine.value, spec, flags, set_ or [])
        body = {"name": name, "spec": asked, "pool": pool, "device": device}
        model = api.client.add_model(body)
        if api.as_json:
            print_json(model)
        else:
            print_fields(fields_of(model))


def _speculation(
    draft_path: str | None, draft_device: str | None, n_tokens: int | None, prompt_lookup: bool
) -> dict[str, Any]:
    """--num-assistant-tokens belongs to whichever way of speculation is chosen."""
    if prompt_lookup and n_tokens is None:
        raise InvalidRequest("--prompt-lookup needs --num-assistant-tokens")
    if n_tokens is not None and not prompt_lookup and draft_path is None:
        raise InvalidRequest(
            "--num-assistant-tokens goes with --draft-model-path or --prompt-lookup; in a spec "
            "file's draft, use --set draft.num_assistant_tokens"
        )
    method = "prompt_lookup" if prompt_lookup else "draft"
    return {
        "draft.path": draft_path,
        "draft.device": draft_device,
        f"{method}.num_assistant_tokens": n_tokens,
    }
