"""What the compile cache saves: loads of a model without it, cold, and with what the cold one left.

    python -m tests.perf.cache [--model DIR] [--device CPU] [--repeats 3]

Each load is a fresh engine host behind the real leases (an embedded Postgres), each round has a
fresh cache directory. The second table compiles the same IR without paged attention, as stateful
pipelines do: that is what a device's own import saves where it takes a compiled model back.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openvino as ov
from rich.console import Console
from rich.table import Table

import batchgen.demo
from batchgen.dispatch import NoBells
from batchgen.domain.clock import SystemClock
from batchgen.engines.client import EngineClient
from batchgen.engines.openvino.blobs import blob_directory
from batchgen.engines.spec import OpenVinoSpec
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.settings import Settings
from batchgen.storage.migrate import upgrade
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from batchgen.telemetry.logs import configure
from workers.cached_load import CachedLoad
from workers.context import Context
from workers.device_record import DeviceRecord

DEMO = Path(batchgen.demo.__file__).parent / "models" / "orders-qwen3-2m-ov"
LOADS = ("without a cache", "first", "second", "third")


@contextmanager
def loader(home: Path) -> Iterator[CachedLoad]:
    """Loads behind a database of their own."""
    with EmbeddedPostgres(home / "pg", log_path=home / "pg.log", durable=False) as postgres:
        upgrade(postgres.url)
        settings = Settings(data_dir=home / "data", database_url=postgres.url)
        database, store = Database(postgres.url), ObjectStore.from_url((home / "o").as_uri())
        context = Context(settings, database, store, NoBells(), SystemClock())
        record = DeviceRecord(context, "bench", "default")
        record.take()
        try:
            log = home / "host.log"
            yield CachedLoad(context, record.id, lambda: EngineClient(log_path=log))
        finally:
            record.leave()
            database.close()


def one_load(loading: CachedLoad, spec: OpenVinoSpec) -> dict[str, Any]:
    began = time.monotonic()
    client, applied = loading.load(spec, lambda: None)
    took_s = time.monotonic() - began
    client.close()
    loading.unloaded()
    return {
        "load_s": took_s,
        "compile_s": applied.compile_s,
        "state": applied.cache_state,
        "bytes": applied.cache_bytes,
        "note": applied.config["cache_note"] or "",
    }


def one_round(model: Path, device: str) -> list[dict[str, Any]]:
    cached = OpenVinoSpec(path=str(model), device=device)
    plain = OpenVinoSpec(path=str(model), device=device, cache=False)
    with (
        tempfile.TemporaryDirectory(prefix="batchgen-cache-") as home,
        loader(Path(home)) as loading,
    ):
        return [one_load(loading, plain), *(one_load(loading, cached) for _ in LOADS[1:])]


def unpaged(model: Path, device: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="batchgen-cache-") as home:
        found = []
        for _ in range(2):
            directory = blob_directory(OpenVinoSpec(path=str(model), cache_dir=home))
            began = time.monotonic()
            ov.Core().compile_model(model / "openvino_model.xml", device, {"CACHE_DIR": home})
            took_s = time.monotonic() - began
            size = sum(blob.stat().st_size for blob in Path(home).iterdir())
            found.append({"compile_s": took_s, "state": directory.state(), "bytes": size})
        return found


def table_of(title: str, names: tuple[str, ...], rounds: list[list[dict[str, Any]]]) -> Table:
    table = Table(title=title)
    for heading in ("load", "whole s", "pipeline s", "state", "MB kept", "note"):
        table.add_column(heading, justify="left" if heading in {"load", "note"} else "right")
    for name, samples in zip(names, zip(*rounds, strict=True), strict=True):
        last = samples[-1]
        table.add_row(
            name,
            _spread(samples, "load_s"),
            _spread(samples, "compile_s"),
            " ".join(sorted({s["state"] for s in samples})),
            "-" if last["bytes"] is None else f"{last['bytes'] / 1e6:.1f}",
            last.get("note", ""),
        )
    return table


def _spread(samples: tuple[dict[str, Any], ...], name: str) -> str:
    values = [s[name] for s in samples if s.get(name) is not None]
    return f"{statistics.median(values):.2f} ({max(values):.2f})" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    configure("ERROR")
    console = Console()
    rounds = [one_round(asked.model, asked.device) for _ in range(asked.repeats)]
    of = f"{asked.model.name} on {asked.device}: median (worst) of {asked.repeats}"
    console.print(table_of(f"continuous batching, {of}", LOADS, rounds))
    rounds = [unpaged(asked.model, asked.device) for _ in range(asked.repeats)]
    console.print(table_of(f"without paged attention, {of}", ("first", "second"), rounds))


if __name__ == "__main__":
    main()
