"""The stack with small children: what is killed comes back, what is asked to end ends."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from batchgen.local import state
from batchgen.local.credentials import credentials_path, read_credentials
from batchgen.local.detached import down
from batchgen.local.state import StackState
from batchgen.settings import Settings

SMALL_STACK = Path(__file__).with_name("small_stack.py")


Start = Callable[..., "RunningStack"]


class RunningStack:
    """A stack in a process of its own, and what it reports."""

    def __init__(self, data_dir: Path, *options: str):
        self.settings = Settings(data_dir=data_dir)
        self.process = subprocess.Popen(
            [sys.executable, str(SMALL_STACK), str(data_dir), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []

    def wait_for(self, words: str) -> str:
        """The first line from here on that holds `words`; fails where the stack ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if words in line:
                return line
        _, errors = self.process.communicate(timeout=30)
        pytest.fail(f"no {words!r} in {self.said}; {errors}")

    def state(self) -> StackState:
        found = state.status(self.settings)
        assert found is not None
        return found

    def pid_of(self, name: str) -> int:
        pid = next(part.pid for part in self.state().parts if part.name == name)
        assert pid is not None
        return pid

    def end(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Signal it and wait; returns the seconds that took."""
        before = time.monotonic()
        self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return time.monotonic() - before

    def refusal(self) -> str:
        """What it says when it cannot start."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 1
        return errors


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stack that has run: a copy saves a test the making."""
    stack = RunningStack(tmp_path_factory.mktemp("grown") / "data")
    stack.wait_for("ready at")
    stack.end()
    return stack.settings.data_dir


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start_anew(data_dir: Path) -> Iterator[Start]:
    """Starts stacks on one data directory, which does not exist at first."""
    running: list[RunningStack] = []

    def start_one(*options: str) -> RunningStack:
        running.append(RunningStack(data_dir, *options))
        return running[-1]

    yield start_one
    for stack in running:
        if stack.process.poll() is None:
            stack.process.kill()
        stack.process.communicate(timeout=30)


@pytest.fixture
def start(start_anew: Start, data_dir: Path, grown: Path) -> Start:
    """The same on a directory that has been used before."""
    shutil.copytree(grown, data_dir)
    return start_anew


def get(url: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode().strip()
    finally:
        connection.close()


def ask(stack: RunningStack, statement: str) -> object:
    url = stack.state().database_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
        return row and row[0]


def test_it_comes_up_ready_and_leaves_a_key_for_this_machine(
    start_anew: Start,
) -> None:
    stack = start_anew()
    said = stack.wait_for("shown")
    stack.wait_for("ready at")
    kept = read_credentials(stack.settings)
    assert kept is not None
    assert kept.api_key == said.split()[-1]
    assert kept.api_url == stack.state().api_url
    assert kept.api_key not in repr(kept)
    assert credentials_path(stack.settings).stat().st_mode & 0o777 == 0o600
    assert ask(stack, "SELECT count(*) FROM jobs") == 0
    assert {p.name for p in stack.state().parts if p.alive} == {
        *("postgres", "valkey", "api", "device-cpu")
    }
    assert stack.end() < 10
    assert stack.process.returncode == 0
    assert state.status(stack.settings) is None


def test_a_later_start_keeps_the_key(start: Start, grown: Path) -> None:
    stack = start()
    stack.wait_for("ready at")
    before, kept = read_credentials(Settings(data_dir=grown)), read_credentials(stack.settings)
    assert before is not None
    assert kept is not None
    assert kept.api_key == before.api_key
    assert kept.api_url == stack.state().api_url
    assert not any("shown" in line for line in stack.said)


def test_a_key_that_is_lost_is_replaced(start: Start, data_dir: Path) -> None:
    (data_dir / "credentials.json").unlink()
    stack = start()
    shown = stack.wait_for("shown").split()[-1]
    stack.wait_for("ready at")
    kept = read_credentials(stack.settings)
    assert kept is not None
    assert kept.api_key == shown


def test_a_second_stack_on_the_directory_is_refused_with_pid_and_mend(
    start: Start,
) -> None:
    first = start()
    first.wait_for("ready at")
    refusal = start().refusal()
    assert f"already in use by process {first.process.pid}" in refusal
    assert "batchgen down --data-dir" in refusal
    assert ask(first, "SELECT 1") == 1


def test_whatever_part_is_killed_is_started_again(start: Start) -> None:
    stack = start()
    stack.wait_for("ready at")
    for name in ("postgres", "valkey", "api", "device-cpu"):
        os.kill(stack.pid_of(name), signal.SIGKILL)
        stack.wait_for(f"{name} died")
        stack.wait_for(f"{name} started again")
    assert ask(stack, "SELECT count(*) FROM jobs") == 0
    assert get(stack.state().api_url)


def test_clients_wait_out_a_restart_of_the_api(start: Start) -> None:
    stack = start()
    stack.wait_for("ready at")
    url = stack.state().api_url
    before = get(url)
    os.kill(int(before), signal.SIGKILL)
    stack.wait_for("api died")
    assert get(url) != before  # asked while nobody was there to answer


def test_nothing_outlives_a_killed_supervisor_and_the_next_start_recovers(
    start: Start, wait_for_end: Callable[[int], None]
) -> None:
    first = start("stubborn")
    first.wait_for("ready at")
    pids = [part.pid for part in first.state().parts if part.pid]
    assert len(pids) == 5
    first.end(signal.SIGKILL)
    second = start()
    second.wait_for("ready at")
    for pid in pids:
        wait_for_end(pid)
    assert ask(second, "SELECT count(*) FROM jobs") == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_stops_cleanly_on_the_signals_that_end_a_program(
    start: Start, number: signal.Signals
) -> None:
    stack = start()
    stack.wait_for("ready at")
    pids = [part.pid for part in stack.state().parts if part.pid]
    assert stack.end(number) < 10
    assert stack.process.returncode == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_child_that_does_not_end_when_asked_is_killed_within_ten_seconds(
    start: Start,
) -> None:
    stack = start("stubborn")
    stack.wait_for("ready at")
    pid = stack.pid_of("stubborn")
    assert stack.end() < 10
    assert stack.process.returncode == 0
    assert not Path(f"/proc/{pid}").exists()


def test_asked_twice_it_waits_for_nobody(start: Start) -> None:
    stack = start("stubborn")
    stack.wait_for("ready at")
    stack.process.send_signal(signal.SIGINT)
    stack.wait_for("stopping")
    assert stack.end(signal.SIGINT) < 4


def test_a_stop_during_the_start_leaves_nothing_running(
    start: Start,
) -> None:
    stack = start("slow")
    stack.wait_for("starting on")
    assert stack.end(signal.SIGINT) < 10
    assert stack.process.returncode == 0
    again = start()
    again.wait_for("ready at")


def test_a_child_that_never_comes_up_fails_the_start_with_its_last_words(
    start: Start,
) -> None:
    refusal = start("failing").refusal()
    assert "failing does not come up" in refusal
    assert "the wheels have come off" in refusal


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_names_the_taker(
    start: Start,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusal = start("--port", str(port)).refusal()
    assert f"port {port} on 127.0.0.1 is in use by process {os.getpid()}" in refusal


def test_down_stops_the_stack_of_a_directory(start: Start, data_dir: Path) -> None:
    stack = start()
    stack.wait_for("ready at")
    assert down(Settings(data_dir=data_dir))
    assert state.status(stack.settings) is None
    assert not down(Settings(data_dir=data_dir))


def test_down_kills_a_frozen_stack(start: Start, data_dir: Path) -> None:
    stack = start()
    stack.wait_for("ready at")
    stack.process.send_signal(signal.SIGSTOP)
    assert down(Settings(data_dir=data_dir), timeout_s=1.0)
    assert stack.process.wait(timeout=10) == -signal.SIGKILL
