"""A child process of the stack: how it is started, known to be ready, and ended."""

import http.client
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from urllib.parse import urlsplit

from batchgen.local import spawn


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. With `ready_url` it is ready when a GET there answers 200, else by its file.

    `pass_fds` are file descriptors that it inherits.
    """

    name: str
    command: tuple[str, ...]
    ready_url: str | None = None
    pass_fds: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class ChildProcess:
    """One child, started again and again from the same specification.

    It finds the file to touch when it is ready in BATCHGEN_READY_FILE.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        cwd: Path,
        env: Mapping[str, str],
        log_path: Path,
        run_dir: Path,
    ):
        self.name = spec.name
        self.log_path = log_path.absolute()
        self._spec = spec
        self._cwd = cwd
        self._ready_file = run_dir.absolute() / f"{spec.name}.ready"
        self._env = {**env, **spec.env, "BATCHGEN_READY_FILE": str(self._ready_file)}
        self._process: spawn.Child | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def ended_with(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def start(self) -> None:
        """Raises StackError where it cannot be started."""
        self._ready_file.unlink(missing_ok=True)
        self._process = spawn.spawn(
            self._spec.command,
            log_path=self.log_path,
            # The supervisor was killed, and with it the database: there is nothing to hand over.
            death_signal=SIGKILL,
            cwd=self._cwd,
            env=self._env,
            pass_fds=self._spec.pass_fds,
        )

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        """Whether it lives and has said that it is ready."""
        if not self.is_alive():
            return False
        if self._spec.ready_url is None:
            return self._ready_file.exists()
        return answers_200(self._spec.ready_url)

    def ask_to_end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def end(self, patience_s: float) -> None:
        """Wait for its end; after `patience_s` it and what it started are killed."""
        if self._process is not None:
            try:
                self._process.wait(timeout=max(patience_s, 0.0))
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, SIGKILL)  # it leads a session of its own
                self._process.wait()
        self._ready_file.unlink(missing_ok=True)


def answers_200(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether a GET of the URL answers with status 200 in time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=timeout_s
    )
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
