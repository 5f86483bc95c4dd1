"""What `demo` does, and the table at its end."""

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchgen.cli.api_command import Api
from batchgen.cli.borrowed_stack import stack_for
from batchgen.cli.follow import exit_code_of, follow, say_faults
from batchgen.cli.output_file import written
from batchgen.cli.progress import Display
from batchgen.cli.render import note, print_json, print_table, printable, rounded
from batchgen.client.upload import Upload
from batchgen.demo.orders import Example, Score, batch_line, held_out, score
from batchgen.domain.requests import Endpoint

if TYPE_CHECKING:
    from batchgen.client import Client, Event

MODEL_NAME = "demo"
_MODEL = files("batchgen.demo") / "models" / "orders-qwen3-2m-ov"
# Every order begins with the same long instruction: its prefill is paid for once.
_SCHEDULER = {"enable_prefix_caching": True, "max_num_seqs": 32}
_SHOWN_TEXTS = 4
_FILES = {"results": "answers.jsonl", "errors": "errors.jsonl", "timings": "timings.jsonl"}


def run_demo(
    api: Api, n_requests: int, *, directory: Path | None, keep_up: bool, quiet: bool
) -> int:
    """Run the orders to their end and print the table; returns the exit code."""
    orders = {f"order-{i:03}": example for i, example in enumerate(held_out(n_requests), 1)}
    with stack_for(api, keep_up=keep_up, quiet=quiet):
        client = api.client
        spec = {"engine": "openvino", "path": str(_MODEL), "scheduler_config": _SCHEDULER}
        client.add_model({"name": MODEL_NAME, "spec": spec})
        file = client.upload(Upload("orders.jsonl", _lines(orders)))
        job = client.create_job(
            {
                "input_file_id": file["id"],
                "endpoint": Endpoint.CHAT_COMPLETIONS,
                "model": MODEL_NAME,
                "metadata": {"demo": "orders"},
            }
        )
        texts = _Texts(client, job, orders, wanted=0 if quiet else _SHOWN_TEXTS)
        job = follow(client, job["id"], quiet=quiet, each=texts.take)
        say_faults(job)
        folder = directory or _default_directory(api, job["id"])
        paths = _fetch(client, job, folder)
        found = score(_answers(Path(paths["results"])), _expected(orders))
        metrics = client.metrics(job["id"])
    if api.as_json:
        print_json(_as_json(job, found, metrics, paths))
    else:
        _print_table(found, metrics)
        print()
        for name, path in paths.items():
            print(f"{name:8} {path}")
    return exit_code_of(job)


class _Texts:
    """Shows the first few answers as they come, each beside its order."""

    def __init__(
        self, client: "Client", job: Mapping[str, Any], orders: Mapping[str, Example], wanted: int
    ):
        self._client = client
        self._job = job
        self._orders = orders
        self._wanted = wanted
        self._shown: set[str] = set()

    def take(self, event: "Event", shown: Display) -> None:
        if event.name != "progress" or len(self._shown) >= self._wanted:
            return
        if not event.data["counts"]["completed"]:
            return
        so_far = BytesIO()
        self._client.download(self._job["id"], "results", so_far)
        for line in so_far.getvalue().splitlines():
            custom_id, text = _answer(json.loads(line))
            if custom_id in self._shown:
                continue
            self._shown.add(custom_id)
            shown.say(f"> {self._orders[custom_id].message}\n  {printable(text)}")
            if len(self._shown) >= self._wanted:
                return


def _lines(orders: Mapping[str, Example]) -> Iterator[bytes]:
    for custom_id, example in orders.items():
        line = batch_line(example, custom_id, MODEL_NAME)
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _default_directory(api: Api, job_id: str) -> Path:
    from batchgen.cli.connect import load_settings

    return load_settings(api.data_dir).data_dir / "demo" / job_id


def _fetch(client: "Client", job: Mapping[str, Any], folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for part in ("results", "errors", "timings"):
        path = folder / _FILES[part]
        with written(str(path)) as out:
            client.download(job["id"], part, out)
        paths[part] = str(path)
    return paths


def _answers(path: Path) -> dict[str, str]:
    with path.open("rb") as lines:
        return dict(_answer(json.loads(line)) for line in lines)


def _answer(record: Mapping[str, Any]) -> tuple[str, str]:
    choice = record["response"]["body"]["choices"][0]
    return record["custom_id"], choice["message"]["content"] or ""


def _expected(orders: Mapping[str, Example]) -> dict[str, dict[str, Any]]:
    return {custom_id: example.order.to_dict() for custom_id, example in orders.items()}


def _print_table(found: Score, metrics: Mapping[str, Any]) -> None:
    values, spread = metrics["values"], metrics["distributions"]

    def value(name: str) -> str:
        v = values[name]
        return rounded(v["value"]) if v["value"] is not None else f"- ({v['reason']})"

    def quantiles(name: str) -> str:
        d = spread[name]
        if d["n"] == 0:
            return f"- ({d['reason']})"
        return " / ".join(rounded(d[q]) for q in ("p50", "p90", "p99"))

    rows: list[tuple[str, str]] = [
        ("orders", f"{found.total:,}"),
        ("exact match", f"{100 * found.exact_share:.1f} %  ({found.exact:,} of {found.total:,})"),
        ("wrong / no JSON", f"{found.wrong:,} / {found.unparsed:,}"),
        ("output tokens/s", value("output_tok_s")),
        ("requests/s", value("req_s")),
        ("makespan, s", value("makespan_s")),
        ("model load, s", value("load_s")),
        ("prefix cache hits", value("prefix_hit_rate")),
        ("TTFT ms, p50 / p90 / p99", quantiles("ttft_ms")),
        ("TPOT ms, p50 / p90 / p99", quantiles("tpot_ms")),
    ]
    note("")
    print_table(["DEMO", "MEASURED"], rows)


def _as_json(
    job: Mapping[str, Any],
    found: Score,
    metrics: Mapping[str, Any],
    paths: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "job": job["id"],
        "state": job["state"],
        "orders": found.total,
        "exact": found.exact,
        "exact_share": found.exact_share,
        "wrong": found.wrong,
        "unparsed": found.unparsed,
        "metrics": metrics,
        "files": paths,
    }
