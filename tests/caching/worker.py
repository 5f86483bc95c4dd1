"""A worker that loads one engine: `python -m tests.caching.worker DEVICE SPEC-AS-JSON`.

Settings come from the environment. It prints what was applied as one line of JSON, or
`{"failed": …}`, and keeps the engine, with a heartbeat, until its standard input ends.
"""

import json
import select
import shlex
import sys
from pathlib import Path

import msgspec

from batchgen.dispatch import NoBells
from batchgen.domain.clock import SystemClock
from batchgen.domain.errors import EngineError, Unavailable
from batchgen.engines.client import HOST_COMMAND, EngineClient
from batchgen.engines.spec import decode_spec
from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from batchgen.telemetry.logs import configure
from workers.cached_load import CachedLoad
from workers.context import Context
from workers.device_record import DeviceRecord


def main(device: str, spec: str) -> None:
    settings = Settings()
    configure("WARNING")
    database = Database(settings.database_url)
    store = ObjectStore.from_url(settings.store)
    context = Context(settings, database, store, NoBells(), SystemClock())
    record = DeviceRecord(context, device, "default")
    record.take()
    log = Path(settings.data_dir) / f"host-{device}.log"
    command = shlex.split(settings.host_command) or HOST_COMMAND
    loading = CachedLoad(context, record.id, lambda: EngineClient(log_path=log, command=command))

    def tick() -> None:
        try:
            record.beat("loading")
        except Unavailable:
            return

    try:
        client, applied = loading.load(decode_spec(json.loads(spec)), tick)
    except EngineError as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        record.leave()
        return
    print(json.dumps(msgspec.to_builtins(applied)), flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        tick()
    client.close()
    loading.unloaded()
    record.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
