"""The doctor with a patient that is ill in one place."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from batchgen.domain.errors import StackError
from batchgen.local import (
    credentials,
    data_directory,
    detached,
    doctor,
    machine_checks,
    service_checks,
    state,
)
from batchgen.local.broker_check import broker_check
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.local.valkey import EmbeddedValkey
from batchgen.settings import Settings


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path / "valkey", log_path=tmp_path / "valkey.log") as server:
        yield server


def test_a_machine_without_a_stack_is_not_ill_and_nothing_is_made(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    found = {check.name: check for check in doctor.checks(settings)}
    for name in ("stack", "database", "broker", "object store", "credentials", "api"):
        assert found[name].ok is None, found[name]
    for name in ("python", "data directory", "postgres program", "valkey program"):
        assert found[name].ok, found[name]
    assert not settings.data_dir.exists()
    assert all(check.mend for check in found.values() if check.ok is False)


def test_a_database_that_cannot_be_reached_is_named_with_the_mend() -> None:
    url = "postgresql+psycopg://batchgen@/batchgen?host=/nonexistent"
    (check,) = service_checks.database(url)
    assert check.ok is False
    assert "cannot be reached" in check.detail
    assert "BATCHGEN_DATABASE_URL" in check.mend


def test_a_database_of_another_schema_is_to_be_upgraded(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", log_path=tmp_path / "pg.log", durable=False) as postgres:
        found = {check.name: check for check in service_checks.database(postgres.url)}
    assert found["database"].ok
    assert found["clock"].ok
    assert found["schema"].ok is False
    assert found["schema"].mend == "`batchgen db upgrade`"


def test_a_broker_that_may_throw_bells_away_is_ill(valkey: EmbeddedValkey) -> None:
    assert broker_check(valkey.url).ok
    with redis.Redis.from_url(valkey.redis_url) as client:
        client.config_set("maxmemory", "64mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    check = broker_check(valkey.url)
    assert check.ok is False
    assert "noeviction" in check.mend


def test_a_broker_that_does_not_answer_is_ill(valkey: EmbeddedValkey) -> None:
    url = valkey.url
    valkey.stop()
    assert broker_check(url).ok is False


def test_a_store_that_cannot_be_written_is_ill(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the directory should be")
    check = service_checks.object_store((tmp_path / "objects").as_uri())
    assert check.ok is False
    assert "BATCHGEN_STORE_URL" in check.mend


def test_an_engine_that_is_not_installed_is_named_with_the_mend() -> None:
    check = machine_checks.engine("imaginary", "imaginary_engine")
    assert check.ok is False
    assert check.mend == "`pip install 'batchgen[imaginary]'`"


def test_a_data_directory_that_looks_writable_and_is_not_is_found_out() -> None:
    # Root may write everywhere by its rights, and yet nothing can be made here.
    check = machine_checks.data_directory(Path("/proc/foo"))
    assert check.ok is False
    assert "in /proc" in check.detail
    assert "--data-dir" in check.mend


@pytest.fixture
def of_another_user(tmp_path: Path) -> Iterator[Settings]:
    """A data directory that was used, and that this process has no right to any more."""
    settings = Settings(data_dir=tmp_path / "closed" / "data")
    settings.run_dir.mkdir(parents=True)
    state.lock_path(settings).touch()
    credentials.credentials_path(settings).touch(mode=0o600)
    (tmp_path / "closed").chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield settings
    os.seteuid(was)
    (tmp_path / "closed").chmod(0o700)


def test_a_data_directory_of_another_user_is_said_with_the_mend(of_another_user: Settings) -> None:
    for look in (
        data_directory.make_directories,
        state.status,
        credentials.read_credentials,
        detached.up_detached,
        detached.down,
    ):
        with pytest.raises(StackError, match="--data-dir"):
            look(of_another_user)
    check = machine_checks.data_directory(of_another_user.data_dir)
    assert check.ok is False
    assert "Permission denied" in check.detail
    (stack,) = service_checks.service_checks(of_another_user)
    assert stack.ok is False


def test_a_data_directory_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = machine_checks.data_directory(tmp_path / "file" / "data")
    assert check.ok is False
    assert "--data-dir" in check.mend
