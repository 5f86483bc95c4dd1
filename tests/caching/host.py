"""An engine host whose engine compiles: `python -m tests.caching.host`, in place of the real one.

It does what a CPU does not do with paged attention, take a compiled model back, and does it as
OpenVINO does: it writes `<hash>.blob` into the spec's `cache_dir`, reads it at the next load, and
removes and writes anew one that it does not take. The spec's `runtime_config` scripts it:

`COMPILE_S`    how long a compilation takes
`GATE`         a file that must exist before the compilation goes on
`BLOB_BYTES`   the size of the compiled model
`DRIVER`       the version of the device's driver
`IMPORTS`      false: it compiles anew whatever it finds
`DIES_WARM`    true: it ends by SIGKILL when it finds a compiled model
`FAILS`        true: it refuses to load at all

Each compilation is noted as a line of `compiled.log` in the model directory.
"""

import os
import signal
import sys
import time
from pathlib import Path

from batchgen.domain.errors import LoadFailed
from batchgen.engines import host
from batchgen.engines.compile_identity import CompileIdentity, PhysicalDevice
from batchgen.engines.protocol import Applied, Engine
from batchgen.engines.simulated.engine import SimulatedEngine
from batchgen.engines.spec import EngineSpec, OpenVinoSpec, SimulatedSpec

_SCRIPT = ("COMPILE_S", "GATE", "BLOB_BYTES", "DRIVER", "IMPORTS", "DIES_WARM", "FAILS")


class CompilingEngine(SimulatedEngine):
    """The simulated engine behind a compilation."""

    def compile_identity(self, spec: EngineSpec, hashes: str | None) -> CompileIdentity | None:
        assert isinstance(spec, OpenVinoSpec)
        assert hashes is not None
        asked = spec.runtime_config
        return CompileIdentity(
            model_hash=(Path(spec.path) / "openvino_model.bin").read_text(),
            device="GPU",
            devices=[
                PhysicalDevice(
                    kind="GPU",
                    name="a card",
                    architecture="xe",
                    driver=str(asked.get("DRIVER", "1.0")),
                )
            ],
            libraries={"openvino": "2026.4.1"},
            properties={k: v for k, v in asked.items() if k not in _SCRIPT},
            graph={"evicts": bool(spec.scheduler_config.use_cache_eviction)},
        )

    def load(self, spec: EngineSpec) -> Applied:
        assert isinstance(spec, OpenVinoSpec)
        asked = spec.runtime_config
        if asked.get("FAILS"):
            raise LoadFailed("scripted")
        state, took_s = "off", 0.0
        if spec.cache and spec.cache_dir is not None:
            blob = (
                Path(spec.cache_dir) / f"{int(bool(spec.scheduler_config.use_cache_eviction))}.blob"
            )
            if blob.exists() and asked.get("DIES_WARM"):
                os.kill(os.getpid(), signal.SIGKILL)
            state = "warm" if blob.exists() and asked.get("IMPORTS", True) else "cold"
            if state == "cold":
                took_s = self._compile(spec)
                blob.unlink(missing_ok=True)
                blob.write_bytes(os.urandom(int(asked.get("BLOB_BYTES") or 1_000)))
        else:
            took_s = self._compile(spec)
        applied = super().load(SimulatedSpec(device=spec.device, step_s=0.001))
        return Applied(
            **{f: getattr(applied, f) for f in applied.__struct_fields__}
            | {"cache_state": state, "compile_s": took_s}
        )

    @staticmethod
    def _compile(spec: OpenVinoSpec) -> float:
        started = time.monotonic()
        with (Path(spec.path) / "compiled.log").open("a") as log:
            log.write(f"{os.getpid()}\n")
        time.sleep(float(spec.runtime_config.get("COMPILE_S") or 0))
        gate = spec.runtime_config.get("GATE")
        while gate and not Path(str(gate)).exists():
            time.sleep(0.01)
        return time.monotonic() - started


def make(spec: EngineSpec) -> Engine:
    return CompilingEngine()


if __name__ == "__main__":
    sys.exit(host.main(make))
