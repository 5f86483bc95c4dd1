"""Launchers to kill, and other users to be."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchgen.local import armed
from batchgen.local.identity import Identity, user_namespaces_work

LAUNCHER = Path(__file__).with_name("launcher.py")


class Launched:
    """A launcher process and the server that it holds."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self.process = process
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            _, errors = process.communicate(timeout=30)
            pytest.fail(f"the launcher ended with {process.returncode}: {errors}")
        pid, self.url = line.split()
        self.server_pid = int(pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)

    def finish(self) -> str:
        """Let it end in good order; returns what it printed."""
        output, errors = self.process.communicate("", timeout=30)
        assert self.process.returncode == 0, errors
        return output


Launch = Callable[..., Launched]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a launcher; `identity` runs it as someone else."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, home: Path, *, identity: Identity = Identity.SAME) -> Launched:
        wrapper = [sys.executable, "-I", "-S", armed.__file__, str(os.getpid()), "9"]
        process = subprocess.Popen(
            [*wrapper, identity.value, "keep", sys.executable, str(LAUNCHER), kind, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Launched(process)

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)


@pytest.fixture(params=["namespace", "nobody"])
def ordinary_user(request: pytest.FixtureRequest) -> Identity:
    """Who is not root: this process itself, or one of the two that root can become."""
    if os.geteuid() != 0:
        return Identity.SAME
    if request.param == "namespace" and user_namespaces_work():
        return Identity.NAMESPACE
    return Identity.REACHING_NOBODY


@pytest.fixture
def wait_for_end() -> Callable[[int], None]:
    """Wait until a process that is not ours has ended; fails after 20 s."""

    def wait(pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            ended, _, _ = select.select([fd], [], [], 20)
        finally:
            os.close(fd)
        assert ended, f"process {pid} still runs"

    return wait
