"""A stack in the background: started, found and stopped by other processes."""

import os
import signal
import sys
import time
from collections.abc import Sequence

from batchgen.domain.errors import StackError
from batchgen.local import lock, logs, state
from batchgen.local.data_directory import make_directories
from batchgen.local.state import StackState
from batchgen.settings import Settings

# More than the 10 s that a clean stop may take.
_STOP_TIMEOUT_S = 15.0


def up_detached(
    settings: Settings,
    *,
    host: str | None = None,
    port: int | None = None,
    device_names: Sequence[str] | None = None,
    timeout_s: float = 180.0,
) -> StackState:
    """Start the stack in the background and wait until it is ready.

    It outlives this process; its own messages are in logs/stack.log. Raises StackError with the
    end of that log where it does not come up (it is stopped then).
    """
    make_directories(settings)
    log_path = settings.log_dir / "stack.log"
    if lock.holder(state.lock_path(settings)) is None:
        logs.rotate(log_path)
    command = [sys.executable, "-P", "-m", "batchgen.local"]
    command += [f"--host={host}"] if host is not None else []
    command += [f"--port={port}"] if port is not None else []
    command += [f"--device={name}" for name in device_names or ()]
    chosen = {
        f"BATCHGEN_{name.upper()}": str(getattr(settings, name))
        for name in settings.model_fields_set
    }
    environment = {**os.environ, **chosen, "BATCHGEN_DATA_DIR": str(settings.data_dir.absolute())}
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        command,
        environment,
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    deadline = time.monotonic() + timeout_s
    while True:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            raise StackError(f"the stack did not start: {logs.tail(log_path)}")
        found = state.status(settings)
        if found is not None and found.pid == pid and found.ready:
            return found
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            raise StackError(
                f"the stack is not ready after {timeout_s:g} s; its log {log_path} ends "
                f"with:\n{logs.tail(log_path)}"
            )
        time.sleep(0.02)


def down(settings: Settings, *, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
    """Stop the stack that runs on the data directory and wait for its end.

    Says whether there was one. One that does not end in `timeout_s` is killed, its processes with
    it. Raises StackError where it belongs to another user.
    """
    held = state.lock_path(settings)
    pid = lock.holder(held)
    if pid is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return True
        except PermissionError as error:
            raise StackError(
                f"the stack on {settings.data_dir} (process {pid}) belongs to another user: stop "
                "it as that user"
            ) from error
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if lock.holder(held) != pid:
                return True
            time.sleep(0.02)
    raise StackError(f"process {pid} does not end, even by SIGKILL")
