"""The embedded Postgres through all that happens to it."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from batchgen.domain.errors import StackError
from batchgen.local import orphans
from batchgen.local.identity import Identity, nobody_for
from batchgen.local.postgres import EmbeddedPostgres


def postgres_in(home: Path, **options: Any) -> EmbeddedPostgres:
    return EmbeddedPostgres(
        home, log_path=home.parent / "postgres.log", **{"durable": False, **options}
    )


def ask(url: str, statement: LiteralString) -> Any:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "pg"


def test_it_starts_from_nothing_and_listens_on_a_socket_only(home: Path) -> None:
    with postgres_in(home) as postgres:
        assert ask(postgres.url, "SELECT current_database()") == "batchgen"
        assert ask(postgres.url, "SHOW listen_addresses") == ""
        assert ask(postgres.url, "SHOW server_encoding") == "UTF8"
        assert postgres.socket_path.stat().st_mode & 0o077 == 0
        assert postgres.socket_path.parent.stat().st_mode & 0o077 == 0


def test_a_durable_one_writes_through_to_the_disk(home: Path) -> None:
    with postgres_in(home, durable=True) as postgres:
        assert ask(postgres.url, "SHOW fsync") == "on"
        assert ask(postgres.url, "SHOW full_page_writes") == "on"


def test_a_killed_server_recovers_with_what_was_committed(home: Path) -> None:
    with postgres_in(home) as postgres:
        ask(postgres.url, "CREATE TABLE kept AS SELECT 7 AS n")
        assert postgres.pid is not None
        os.kill(postgres.pid, signal.SIGKILL)
        while postgres.is_alive():
            pass
        assert postgres.recover()
        assert ask(postgres.url, "SELECT n FROM kept") == 7
        assert not postgres.recover()


def test_frozen_backends_of_a_killed_server_do_not_block_the_next(home: Path) -> None:
    with postgres_in(home) as postgres:
        connection = psycopg.connect(postgres.url.replace("+psycopg", ""))
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        assert postgres.pid is not None
        os.kill(postgres.pid, signal.SIGKILL)
        while postgres.is_alive():
            pass
        assert backend in orphans.working_in(home / "data", {"postgres"})
        assert postgres.recover()
        assert backend not in orphans.working_in(home / "data", {"postgres"})
        connection.close()


def test_a_server_ends_with_its_launcher(
    home: Path, launch: Callable[..., Any], wait_for_end: Callable[[int], None]
) -> None:
    launched = launch("postgres", home)
    ask(launched.url, "CREATE TABLE kept AS SELECT 7 AS n")
    launched.kill()
    wait_for_end(launched.server_pid)
    with postgres_in(home) as postgres:
        assert ask(postgres.url, "SELECT n FROM kept") == 7


def test_a_server_that_outlives_its_launcher_is_stopped_by_the_next_start(
    home: Path, launch: Callable[..., Any], wait_for_end: Callable[[int], None]
) -> None:
    launched = launch("postgres", home)
    os.kill(launched.server_pid, signal.SIGSTOP)  # it cannot follow its launcher
    launched.kill()
    assert launched.server_pid in orphans.working_in(home / "data", {"postgres"})
    with postgres_in(home) as postgres:
        wait_for_end(launched.server_pid)
        assert postgres.pid != launched.server_pid
        assert orphans.working_in(home / "data", {"postgres"})[0] == postgres.pid


def test_a_second_launcher_is_refused_with_the_pid_of_the_first(
    home: Path, launch: Callable[..., Any]
) -> None:
    launched = launch("postgres", home)
    with pytest.raises(StackError, match=f"already in use by process {launched.process.pid}"):
        postgres_in(home).start()
    assert ask(launched.url, "SELECT 1") == 1
    launched.finish()


def test_a_pid_file_that_names_a_stranger_is_seen_through(home: Path) -> None:
    with postgres_in(home) as postgres:
        socket_path = postgres.socket_path
        lines = (home / "data" / "postmaster.pid").read_text().splitlines(keepends=True)
    for name in (home / "data" / "postmaster.pid", Path(f"{socket_path}.lock")):
        name.write_text("".join([f"{os.getppid()}\n", *lines[1:]]))
    socket_path.touch()
    with postgres_in(home) as postgres:
        assert ask(postgres.url, "SELECT 1") == 1


def test_a_creation_that_was_killed_half_way_is_swept_and_made_again(home: Path) -> None:
    rubbish = home / "data.new-0badc0de" / "base"
    rubbish.mkdir(parents=True)
    (rubbish / "PG_VERSION").write_text("18\n")
    with postgres_in(home) as postgres:
        assert ask(postgres.url, "SELECT 1") == 1
    assert [path.name for path in home.glob("data*")] == ["data"]


def test_a_directory_of_another_version_is_refused_with_the_mend(home: Path) -> None:
    with postgres_in(home):
        pass
    (home / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(StackError, match=r"written by Postgres 15, the installed package brings"):
        postgres_in(home).start()


def test_a_directory_that_holds_something_else_is_refused(home: Path) -> None:
    (home / "data").mkdir(parents=True)
    (home / "data" / "holiday.jpg").touch()
    with pytest.raises(StackError, match="holds no Postgres cluster"):
        postgres_in(home).start()
    assert (home / "data" / "holiday.jpg").exists()


@pytest.mark.parametrize(
    "name",
    ["with space", "комма, ü 'quote\" %41", "/".join(["x" * 60] * 5)],
    ids=["space", "signs", "300 characters"],
)
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    with postgres_in(home) as postgres:
        assert len(os.fsencode(postgres.socket_path)) <= 107
        assert ask(postgres.url, "SELECT 1") == 1
        sockets = postgres.socket_path.parent
        assert sockets.stat().st_mode & 0o077 == 0
    assert sockets.parent == home or not sockets.exists()


def test_a_foreseeable_socket_directory_of_someone_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    home = tmp_path / ("y" * 120)
    with postgres_in(home) as postgres:
        foreseen = postgres.socket_path.parent
    foreseen.mkdir(mode=0o755)  # as one that another user may enter
    try:
        with postgres_in(home) as postgres:
            assert postgres.socket_path.parent != foreseen
            assert ask(postgres.url, "SELECT 1") == 1
    finally:
        foreseen.rmdir()


def test_variables_that_lead_a_server_astray_do_no_harm(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGOPTIONS", "-c port=1")
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    with postgres_in(home) as postgres:
        monkeypatch.delenv("PGOPTIONS")
        assert ask(postgres.url, "SELECT 1") == 1


def test_what_a_client_sends_is_not_in_the_log(home: Path) -> None:
    with postgres_in(home) as postgres:
        ask(postgres.url, "CREATE TABLE t (n int CHECK (n > 0), said text)")
        with pytest.raises(psycopg.errors.CheckViolation):
            ask(postgres.url, "INSERT INTO t VALUES (-1, 'canary-prompt')")
        with pytest.raises(psycopg.errors.SyntaxError):
            ask(postgres.url, "SELEC 'canary-prompt'")
    assert "canary" not in (home.parent / "postgres.log").read_text()


def test_an_ordinary_user_runs_it(
    tmp_path: Path, launch: Callable[..., Any], ordinary_user: Identity
) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    os.chown(own, ordinary_user.uid, -1)
    launched = launch("postgres", own / "pg", identity=ordinary_user)
    assert (own / "pg" / "data").stat().st_uid == ordinary_user.uid
    assert launched.finish() == "(42,)\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot become another")
def test_root_runs_it_with_and_without_user_namespaces_in_turn(home: Path) -> None:
    with postgres_in(home, identity=Identity.NAMESPACE) as postgres:
        ask(postgres.url, "CREATE TABLE kept AS SELECT 7 AS n")
    for identity in (nobody_for(home), Identity.NAMESPACE):
        with postgres_in(home, identity=identity) as postgres:
            assert ask(postgres.url, "SELECT n FROM kept") == 7
            assert (home / "data").stat().st_uid == identity.uid


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot take anything")
def test_root_does_not_take_the_cluster_of_an_ordinary_user(home: Path) -> None:
    with postgres_in(home):
        pass
    os.chown(home / "data", 1234, -1)
    with pytest.raises(StackError, match="belongs to uid 1234"):
        postgres_in(home).start()
    assert (home / "data").stat().st_uid == 1234


def test_a_stop_is_quick_with_clients_that_hold_on(home: Path) -> None:
    postgres = postgres_in(home)
    postgres.start()
    connection = psycopg.connect(postgres.url.replace("+psycopg", ""))
    connection.execute("CREATE TABLE half_done (n int)")
    before = time.monotonic()
    postgres.stop()
    assert time.monotonic() - before < 3
    connection.close()
    postgres.stop()
