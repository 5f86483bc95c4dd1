"""What a stack runs beside its servers: the API, the control worker, beat, a worker a device."""

import os
import sys
from collections.abc import Sequence
from typing import Protocol

from batchgen.local.child import ChildSpec
from batchgen.local.devices import Devices
from batchgen.local.state import StackState
from batchgen.settings import Settings

_API_GRACE_S = 3


class ChildrenFor(Protocol):
    """Decides what runs; `api_fd` is the listening socket of the API at `api_url`."""

    def __call__(
        self, settings: Settings, devices: Devices, *, api_fd: int, api_url: str
    ) -> Sequence[ChildSpec]: ...


def children_of(
    settings: Settings, devices: Devices, *, api_fd: int, api_url: str
) -> Sequence[ChildSpec]:
    """The real ones. A device worker is called after its device, `device-gpu.0` for GPU.0."""
    python = (sys.executable, "-P", "-m")  # -P: no module is taken from the working directory
    api = ChildSpec(
        name="api",
        command=(
            *(*python, "uvicorn", "--factory", "api.app:create_app", "--fd", str(api_fd)),
            *("--log-level", settings.log_level.lower(), "--no-access-log", "--no-server-header"),
            *("--timeout-graceful-shutdown", str(_API_GRACE_S)),
        ),
        ready_url=f"{api_url}/readyz",
        pass_fds=(api_fd,),
    )
    workers = [
        ChildSpec(name=name, command=(*python, "workers", name)) for name in ("control", "beat")
    ]
    for device in devices.usable:
        command = (*python, "workers", "device", "--device", device.name, "--pool", "default")
        workers.append(ChildSpec(name=f"device-{device.name.lower()}", command=command))
    return [api, *workers]


def environment_of(settings: Settings, state: StackState) -> dict[str, str]:
    """The environment of every child: this one, what was set otherwise, and the stack's places."""
    chosen = {
        f"BATCHGEN_{name.upper()}": str(getattr(settings, name))
        for name in settings.model_fields_set
    }
    return {
        **os.environ,
        **chosen,
        "BATCHGEN_DATA_DIR": str(settings.data_dir.absolute()),
        "BATCHGEN_DATABASE_URL": state.database_url,
        "BATCHGEN_BROKER_URL": state.broker_url,
        "BATCHGEN_STORE_URL": state.store_url,
        "BATCHGEN_API_URL": state.api_url,
        "PYTHONUNBUFFERED": "1",
    }
