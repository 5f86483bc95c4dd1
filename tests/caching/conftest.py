"""Workers of their own processes, with engine hosts that compile, around one cache directory."""

import json
import os
import select
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchgen.dispatch import NoBells
from batchgen.domain.caches import CacheEntry
from batchgen.domain.clock import SystemClock
from batchgen.domain.errors import EngineError
from batchgen.engines.client import EngineClient
from batchgen.engines.spec import OpenVinoSpec, decode_spec, encode_spec
from batchgen.settings import Settings
from batchgen.storage import caches
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.waiting import until
from workers.cached_load import CachedLoad
from workers.context import Context
from workers.device_record import DeviceRecord

LEASE_S = 2.0
HOST = (sys.executable, "-m", "tests.caching.host")
_ROOT = Path(__file__).resolve().parents[2]


def spec_of(device: str, model: Path, **asked: Any) -> OpenVinoSpec:
    """The spec of a model; what is no setting of it is a property, and so scripts the host."""
    settings = {k: asked.pop(k) for k in ("scheduler_config",) if k in asked}
    told = {"engine": "openvino", "path": str(model), "device": device, "runtime_config": asked}
    spec = decode_spec(told | settings)
    assert isinstance(spec, OpenVinoSpec)
    return spec


class Loading:
    """A worker's process; it loads as soon as it is made."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def applied(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """What was loaded, or `failed`."""
        out = self.process.stdout
        assert out is not None
        assert select.select([out], [], [], timeout_s)[0], "the load takes too long"
        return dict(json.loads(out.readline()))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


class Workshop:
    """Models to load, workers to load them, and what the cache holds then."""

    def __init__(self, home: Path, settings: Settings, database: Database) -> None:
        self.home = home
        self.settings = settings
        self.database = database
        self.root = settings.cache_root
        self._store = ObjectStore.from_url(settings.store)
        self._started: list[Loading] = []
        settings.data_dir.mkdir(parents=True, exist_ok=True)

    def model(self, name: str = "m", content: str = "weights") -> Path:
        path = self.home / name
        path.mkdir(exist_ok=True)
        (path / "openvino_model.bin").write_text(content)
        return path

    def start(
        self, device: str, model: Path, *, env: dict[str, str] | None = None, **asked: Any
    ) -> Loading:
        """A worker's process that loads a spec, made of `asked` as `spec_of` does."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("BATCHGEN_")}
        given = {
            "BATCHGEN_DATA_DIR": str(self.settings.data_dir),
            "BATCHGEN_DATABASE_URL": self.settings.database_url,
            "BATCHGEN_LEASE_S": str(LEASE_S),
            "BATCHGEN_HEARTBEAT_S": "0.2",
            "BATCHGEN_HOST_COMMAND": shlex.join(HOST),
        }
        spec = json.dumps(encode_spec(spec_of(device, model, **asked)))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.caching.worker", device, spec],
            env=clean | given | (env or {}),
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started.append(Loading(process))
        return self._started[-1]

    def load(self, device: str, model: Path, **asked: Any) -> dict[str, Any]:
        """Load, and unload again, in a worker of this process. What failed is `failed`."""
        bells, clock = NoBells(), SystemClock()
        context = Context(self.settings, self.database, self._store, bells, clock)
        record = DeviceRecord(context, device, "default")
        record.take()
        log = self.home / "host.log"
        loading = CachedLoad(context, record.id, lambda: EngineClient(log_path=log, command=HOST))
        try:
            client, applied = loading.load(spec_of(device, model, **asked), lambda: None)
            client.close()
            loading.unloaded()
        except EngineError as error:
            return {"failed": str(error)}
        finally:
            record.leave()
        return dict(msgspec.to_builtins(applied))

    def compilations(self, model: Path) -> int:
        log = model / "compiled.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def entries(self) -> list[CacheEntry]:
        with self.database.unit_of_work() as tx:
            return caches.every(tx, LEASE_S)

    def entry(self) -> CacheEntry:
        """The only one that is not quarantined."""
        (found,) = [e for e in self.entries() if "/" not in e.key.name]
        return found

    def blobs(self) -> list[Path]:
        return sorted(self.root.glob("*/*.blob"))

    def compiling(self, model: Path, n: int = 1) -> None:
        """Wait until so many compilations have begun."""
        until(lambda: self.compilations(model) >= n)

    def close(self) -> None:
        for worker in self._started:
            worker.kill()
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"lease_s": LEASE_S})


@pytest.fixture
def workshop(tmp_path: Path, settings: Settings, database: Database) -> Iterator[Workshop]:
    made = Workshop(tmp_path, settings, database)
    yield made
    made.close()
