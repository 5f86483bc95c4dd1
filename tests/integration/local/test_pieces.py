"""The small pieces that the stack is made of."""

import os
import socket
from pathlib import Path

import pytest

from batchgen.domain.errors import InvalidRequest, StackError
from batchgen.local import listening, lock, logs, sockets, state
from batchgen.local.credentials import Credentials, read_credentials, write_credentials
from batchgen.local.devices import CPU, check_name, discover_devices
from batchgen.local.lock import DirectoryLock
from batchgen.settings import Settings


def test_a_log_makes_way_at_a_start_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    for number in range(8):
        log.write_text(f"start {number}")
        logs.rotate(log)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {f"api.log.{n}": f"start {8 - n}" for n in range(1, 6)}
    log.touch()
    logs.rotate(log)
    assert log.exists()


def test_a_lock_names_its_holder_while_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock.holder(path) is None
    first = DirectoryLock(path)
    first.acquire(what="the place", mend="go away")
    assert lock.holder(path) == os.getpid()
    with pytest.raises(StackError, match=f"in use by process {os.getpid()}: go away"):
        DirectoryLock(path).acquire(what="the place", mend="go away")
    first.release()
    assert lock.holder(path) is None
    assert not first.held


def test_a_lock_in_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="cannot write"):
        DirectoryLock(tmp_path / "missing" / "lock").acquire(what="it", mend="")


def test_a_default_port_that_is_taken_is_replaced_and_an_asked_one_is_not() -> None:
    with listening.listen("127.0.0.1", 0, insist=True) as taken:
        port = taken.getsockname()[1]
        with listening.listen("127.0.0.1", port, insist=False) as other:
            assert other.getsockname()[1] != port
            assert listening.url_of(other) == f"http://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StackError, match=f"port {port} .* in use by process {os.getpid()}"):
            listening.listen("127.0.0.1", port, insist=True)


def test_a_connection_to_it_answers_without_delay() -> None:
    with (
        listening.listen("127.0.0.1", 0, insist=True) as bound,
        socket.create_connection(bound.getsockname()),
    ):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(StackError, match=r"cannot listen on 192\.0\.2\.1"):
        listening.listen("192.0.2.1", 0, insist=False)


def test_a_socket_on_every_address_is_reached_by_the_loopback() -> None:
    with listening.listen("0.0.0.0", 0, insist=True) as bound:  # noqa: S104 (what is tested)
        assert listening.url_of(bound).startswith("http://127.0.0.1:")


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert read_credentials(settings) is None
    write_credentials(settings, Credentials("http://127.0.0.1:1", "bg_1_2"))
    assert read_credentials(settings) == Credentials("http://127.0.0.1:1", "bg_1_2")
    (tmp_path / "credentials.json").chmod(0o644)
    with pytest.raises(StackError, match="chmod 600"):
        read_credentials(settings)


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense"])
def test_credentials_that_make_no_sense_are_refused_with_the_mend(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "credentials.json").write_text(text)
    with pytest.raises(StackError, match="remove it"):
        read_credentials(Settings(data_dir=tmp_path))


def test_a_state_left_by_a_killed_stack_is_not_taken_for_a_running_one(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    settings.run_dir.mkdir()
    state.write_state(
        settings,
        state.StackState(pid=1, api_url="x", database_url="x", broker_url="x", store_url="x"),
    )
    assert state.status(settings) is None
    held = DirectoryLock(state.lock_path(settings))
    held.acquire(what="it", mend="")
    found = state.status(settings)
    assert found is not None
    assert (found.pid, found.api_url, found.ready) == (os.getpid(), "", False)
    held.release()


def test_a_machine_without_a_gpu_serves_its_processor(tmp_path: Path) -> None:
    assert discover_devices(dev=tmp_path).usable == (CPU,)


def test_a_gpu_that_no_engine_sees_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    (tmp_path / "nvidia0").touch()
    found = discover_devices(dev=tmp_path, timeout_s=60)
    assert found.usable
    assert len(found.unusable) == (2 if found.usable == (CPU,) else 1)
    assert "NVIDIA" in found.unusable[-1]


def test_a_driver_that_hangs_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    found = discover_devices(dev=tmp_path, timeout_s=0.01)
    assert found.usable == (CPU,)
    assert "does not answer" in found.unusable[0]


def test_a_foreseen_socket_directory_is_not_made(tmp_path: Path) -> None:
    assert sockets.foreseen_socket_directory(tmp_path / "pg") == tmp_path / "pg" / "sock"
    far = sockets.foreseen_socket_directory(tmp_path / ("z" * 150) / "pg")
    assert far is not None
    assert not far.exists()
    assert not far.is_relative_to(tmp_path)


def test_a_linked_socket_directory_is_not_trusted(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "pg", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir(mode=0o700)
    (home / "sock").symlink_to(elsewhere)
    found = sockets.socket_directory(home, uid=os.geteuid())
    assert found not in (elsewhere, home / "sock")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(found / "x"))
    (found / "x").unlink()
    sockets.forget_socket_directory(home, found)
    assert not found.exists()


@pytest.mark.parametrize("name", ["CPU", "CPU.3", "AUTO", "HETERO:CPU", "BATCH:CPU(4)"])
def test_a_device_that_the_machine_has_is_taken(name: str) -> None:
    check_name(name, Settings(), timeout_s=60)


@pytest.mark.parametrize(
    "name", ["", "cpu", "CPU.x", "GPU.77", "HETERO:", "HETERO:GPU.77,CPU", "MULTI:X"]
)
def test_a_device_that_nobody_has_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"it has .*CPU"):
        check_name(name, Settings(), timeout_s=60)


def test_an_engine_of_another_environment_may_know_more_devices() -> None:
    check_name("XPU", Settings(host_command="/opt/other/bin/python -m batchgen.engines.host"))
