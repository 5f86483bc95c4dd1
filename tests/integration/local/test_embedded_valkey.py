"""The embedded Valkey through all that happens to it."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis

from batchgen.domain.errors import StackError
from batchgen.local import orphans
from batchgen.local.identity import Identity
from batchgen.local.valkey import EmbeddedValkey


def valkey_in(home: Path) -> EmbeddedValkey:
    return EmbeddedValkey(home, log_path=home.parent / "valkey.log")


def client(valkey: EmbeddedValkey) -> redis.Redis:
    return redis.Redis.from_url(valkey.redis_url)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "valkey"


def test_kombu_sends_and_receives_over_its_url(home: Path) -> None:
    with valkey_in(home) as valkey, kombu.Connection(valkey.url) as connection:
        queue = connection.SimpleQueue("bells")
        queue.put({"job": "batch_1"})
        message = queue.get(timeout=5)
        assert message.payload == {"job": "batch_1"}
        message.ack()
        queue.close()


def test_it_opens_no_port_and_writes_nothing_to_disk(home: Path) -> None:
    with valkey_in(home) as valkey, client(valkey) as connection:
        assert connection.config_get("port") == {"port": "0"}
        assert connection.config_get("save") == {"save": ""}
        assert connection.config_get("appendonly") == {"appendonly": "no"}
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert valkey.socket_path.stat().st_mode & 0o077 == 0
        assert valkey.socket_path.parent.stat().st_mode & 0o077 == 0
        connection.set("bell", "1")
    assert sorted(path.name for path in home.iterdir()) == ["lock", "sock"]


def test_a_killed_one_is_started_again_at_the_same_place(home: Path) -> None:
    with valkey_in(home) as valkey:
        url = valkey.url
        assert valkey.pid is not None
        os.kill(valkey.pid, signal.SIGKILL)
        while valkey.is_alive():
            pass
        assert valkey.recover()
        assert valkey.url == url
        assert valkey.answers()
        assert not valkey.recover()


def test_one_whose_socket_was_swept_away_is_started_again(home: Path) -> None:
    with valkey_in(home) as valkey:
        valkey.socket_path.unlink()
        assert not valkey.is_alive()
        assert valkey.recover()
        assert valkey.answers()


def test_it_ends_with_its_launcher(
    home: Path, launch: Callable[..., Any], wait_for_end: Callable[[int], None]
) -> None:
    launched = launch("valkey", home)
    launched.kill()
    wait_for_end(launched.server_pid)
    with valkey_in(home) as valkey:
        assert valkey.answers()


def test_one_that_outlives_its_launcher_is_stopped_by_the_next_start(
    home: Path, launch: Callable[..., Any], wait_for_end: Callable[[int], None]
) -> None:
    launched = launch("valkey", home)
    os.kill(launched.server_pid, signal.SIGSTOP)
    launched.kill()
    assert orphans.working_in(home, {"valkey-server"}) == [launched.server_pid]
    with valkey_in(home) as valkey:
        wait_for_end(launched.server_pid)
        assert orphans.working_in(home, {"valkey-server"}) == [valkey.pid]


def test_a_second_launcher_is_refused_with_the_pid_of_the_first(
    home: Path, launch: Callable[..., Any]
) -> None:
    launched = launch("valkey", home)
    with pytest.raises(StackError, match=f"already in use by process {launched.process.pid}"):
        valkey_in(home).start()
    launched.finish()


def test_a_leftover_socket_does_not_stop_a_start(home: Path) -> None:
    (home / "sock").mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home / "sock" / "valkey.sock"))
    with valkey_in(home) as valkey:
        assert valkey.answers()


@pytest.mark.parametrize(
    "name",
    ["with space", "комма, ü 'quote\" %41", "/".join(["x" * 60] * 5)],
    ids=["space", "signs", "300 characters"],
)
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    with valkey_in(tmp_path / name) as valkey, kombu.Connection(valkey.url) as connection:
        connection.ensure_connection(max_retries=1, timeout=2)
        assert len(os.fsencode(valkey.socket_path)) <= 107


def test_an_ordinary_user_runs_it_and_no_other_may_enter(
    tmp_path: Path, launch: Callable[..., Any], ordinary_user: Identity
) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    os.chown(own, ordinary_user.uid, -1)
    launched = launch("valkey", own / "valkey", identity=ordinary_user)
    sockets = Path(launched.url.removeprefix("redis+socket://")).parent
    assert (sockets.stat().st_uid, sockets.stat().st_mode & 0o777) == (ordinary_user.uid, 0o700)
    launched.finish()
