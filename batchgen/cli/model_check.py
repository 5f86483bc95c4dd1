"""`batchgen model check`: try a model out on a device, and show what it turned out to be."""

from typing import Annotated, Any

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.cli.model_add import Name

_LOOK_S = 0.3


def add_to(models: typer.Typer) -> None:
    @api_command(models, "check")
    def check(
        api: Api,
        name: Name,
        device: Annotated[
            str | None, typer.Option(help="Check it on this device. Default: any that may run it.")
        ] = None,
        prompt: Annotated[
            str | None, typer.Option(metavar="TEXT", help="What it is to answer.")
        ] = None,
        max_tokens: Annotated[
            int | None, typer.Option(min=1, help="The most tokens that it answers with.")
        ] = None,
        wait: Annotated[
            float | None,
            typer.Option(
                metavar="SECONDS", min=1, help="How long to wait for a free device. Default: 60."
            ),
        ] = None,
    ) -> None:
        """Load a model on a free device, generate once, and show what was applied.

        Settings that cannot work are refused at once, with the reason. Jobs go first: a check waits
        until a device has nothing to do. Exit code 1 where the model cannot be loaded or run.
        """
        from batchgen.cli.render import note, print_fields, print_json
        from batchgen.domain.errors import Unavailable

        asked = {"device": device, "prompt": prompt, "max_tokens": max_tokens, "wait_s": wait}
        body = {key: value for key, value in asked.items() if value is not None}
        ended = _until_it_ends(api, name, api.client.check_model(name, body))
        if ended["state"] == "expired":
            raise Unavailable(ended["reason"])
        if api.as_json:
            print_json(ended)
        else:
            for warning in ended["warnings"]:
                note(f"warning: {warning}")
            if ended["report"] is not None:
                print_fields(_fields(ended))
        if ended["state"] == "failed":
            if not api.as_json:
                note(f"batchgen: {name} failed its check on {ended['holder']}: {ended['reason']}")
            raise typer.Exit(1)


def _until_it_ends(api: Api, name: str, check: dict[str, Any]) -> dict[str, Any]:
    import time

    from batchgen.cli.render import note

    told = None
    while check["ended_at"] is None:
        if check["state"] != told and not api.as_json:
            told = check["state"]
            note("waiting for a device" if told == "waiting" else f"loading on {check['holder']}")
        time.sleep(_LOOK_S)
        check = api.client.check(name, check["id"])
    return check


def _fields(check: dict[str, Any]) -> dict[str, object]:
    from batchgen.cli.model_fields import flat
    from batchgen.cli.render import size

    report = check["report"]
    applied, stats, generation = report["applied"], report["stats"], report["generation"]
    n_blocks, n_tokens = applied["kv_blocks"], applied["kv_block_tokens"]
    per_token = applied["kv_bytes_per_token"]
    pool = None if None in (n_blocks, per_token) else size(n_blocks * n_tokens * per_token)
    out: dict[str, object] = {
        "model": f"{check['model']} (revision {check['revision']})",
        "checked on": report["device"],
        "engine": f"{applied['engine']} {applied['engine_version']}",
        "device": f"{applied['device']} ({applied['device_name']})",
        "model hash": applied["model_hash"],
        "load_s": applied["load_s"],
        "compile_s": applied["compile_s"],
        "compile cache": applied["cache_state"],
        "host memory": _size(stats["rss_bytes"]),
        "device memory": _size(stats["device_bytes"]),
        "kv bytes per token": per_token,
        "kv tokens per block": n_tokens,
        "kv blocks": "grows as needed" if n_blocks is None and n_tokens else n_blocks,
        "kv pool": pool,
        "max_model_len": applied["max_model_len"],
        "requests at once": applied["max_live"],
        "prompt tokens": generation["prompt_tokens"],
        "output tokens": generation["output_tokens"],
        "finish reason": generation["finish_reason"],
        "ttft_ms": generation["ttft_ms"],
        "tpot_ms": generation["tpot_ms"],
        "text": generation["text"],
    }
    config = flat(applied["config"], "applied.")
    # What was asked for first, then all that the devices go by.
    for name in sorted(config, key=lambda name: (name.startswith("applied.devices."), name)):
        out[name] = config[name]
    return out


def _size(n_bytes: int | None) -> str | None:
    from batchgen.cli.render import size

    return None if n_bytes is None else size(n_bytes)
