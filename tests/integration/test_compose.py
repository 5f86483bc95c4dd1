"""docker-compose.yml: its rules, and every service's command run as a process of this machine.

No Docker runs here, so each command is run with the service's own environment, in which only the
places differ: hosts, ports and directories.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import yaml
from psycopg.conninfo import make_conninfo

from batchgen.local import binaries, initdb, listening
from batchgen.local.credentials import credentials_path
from batchgen.local.identity import identity_for_postgres
from batchgen.local.spawn import end, spawn
from batchgen.local.valkey import EmbeddedValkey
from batchgen.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: s for name, s in SERVICES.items() if s["image"].startswith("batchgen:")}
GIVEN = {"BATCHGEN_POSTGRES_PASSWORD": "pgsecret", "BATCHGEN_VALKEY_PASSWORD": "vksecret"}


def interpolated(text: str) -> str:
    """The text as Compose hands it on: variables replaced, `$$` one dollar."""

    def value(found: re.Match[str]) -> str:
        name, operator, rest = found.groups()
        if name in GIVEN:
            return GIVEN[name]
        assert operator == ":-", f"{name} must be set or have a default"
        return rest

    return re.sub(r"(?<!\$)\$\{(\w+)(:[?-])([^}]*)\}", value, text).replace("$$", "$")


# -- rules ---------------------------------------------------------------------------------------


def test_it_has_every_part_and_a_device_worker_for_each_kind_of_machine() -> None:
    assert set(SERVICES) == {
        *("postgres", "valkey", "prepare", "api", "control", "beat"),
        *("device-cpu", "device-intel", "device-nvidia"),
    }
    assert {name: s.get("profiles") for name, s in SERVICES.items() if "profiles" in s} == {
        f"device-{kind}": [kind] for kind in ("cpu", "intel", "nvidia")
    }
    assert SERVICES["device-intel"]["devices"] == ["/dev/dri:/dev/dri"]
    assert SERVICES["device-intel"]["group_add"]
    (reserved,) = SERVICES["device-nvidia"]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_only_the_api_is_published_and_only_on_the_loopback() -> None:
    assert [name for name, s in SERVICES.items() if "ports" in s] == ["api"]
    assert [interpolated(port) for port in SERVICES["api"]["ports"]] == ["127.0.0.1:8000:8000"]
    for name in ("postgres", "valkey"):
        assert SERVICES[name]["networks"] == ["backend"]
    assert COMPOSE["networks"]["backend"] == {"internal": True}


def test_passwords_must_be_given_and_none_is_written_down() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    uses = re.findall(r"\$\{(BATCHGEN_\w+_PASSWORD)(:\?)?", text)
    assert {name for name, _ in uses} == set(GIVEN)
    assert all(operator == ":?" for _, operator in uses)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_confined_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")
    if name == "prepare":
        assert service["restart"].startswith("on-failure")
        return
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"]
    assert service["stop_grace_period"]
    if name in OURS:
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_the_image_runs_as_an_ordinary_user_and_builds_from_pinned_hashes() -> None:
    stages: list[list[str]] = []
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM "):
            stages.append([])
        if stages:
            stages[-1].append(line)
    users = [[line for line in stage if line.startswith("USER ")] for stage in stages]
    assert all(found[-1] == "USER batchgen" for found in users if found)
    assert users[0]
    assert any("--require-hashes" in line for line in stages[0])
    targets = {s["build"]["target"] for s in OURS.values()}
    assert targets <= {line.split(" AS ")[-1] for stage in stages for line in stage[:1]}


# -- commands ------------------------------------------------------------------------------------


class Process:
    """A running service."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], cwd: Path):
        self.name = name
        self.log = cwd / f"{name}.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                command, env=environment, cwd=cwd, stdout=log, stderr=subprocess.STDOUT
            )
        self.pidfd = os.pidfd_open(self.popen.pid)

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Ask again and again while it runs; fails where it ends or `timeout_s` has passed."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            ended, _, _ = select.select([self.pidfd], [], [], 0.05)
            if ended or time.monotonic() > deadline:
                pytest.fail(f"{self.name} does not come up: {self.log.read_text()}")

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        os.close(self.pidfd)


class Machine:
    """Where the services run: a directory, a database, a broker."""

    def __init__(self, directory: Path, database_url: str, broker_url: str, port: int):
        self.directory = directory
        self.places = {
            "postgresql+psycopg://batchgen:pgsecret@postgres:5432/batchgen": database_url,
            "redis://:vksecret@valkey:6379/0": broker_url,
            "/data": str(directory / "data"),
            "/models": str(directory / "models"),
            "/tmp": str(directory),
            "8000": str(port),
        }
        self.running: list[Process] = []
        (directory / "data").mkdir()
        (directory / "models").mkdir()

    def here(self, text: str) -> str:
        # In one pass: what has been replaced is not looked at again.
        known = "|".join(map(re.escape, self.places))
        return re.sub(known, lambda found: self.places[found[0]], interpolated(text))

    def command(self, name: str) -> list[str]:
        program, *rest = SERVICES[name]["command"]
        return [sys.executable if program == "python" else program, *map(self.here, rest)]

    def environment(self, name: str) -> dict[str, str]:
        kept = {"PATH": os.environ["PATH"]}
        return kept | {k: self.here(v) for k, v in SERVICES[name]["environment"].items()}

    def start(self, name: str) -> Process:
        process = Process(name, self.command(name), self.environment(name), self.directory)
        self.running.append(process)
        return process

    def is_healthy(self, name: str) -> bool:
        kind, program, *rest = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [sys.executable if program == "python" else program, *map(self.here, rest)]
        environment = self.environment(name)
        return (
            subprocess.run(command, env=environment, capture_output=True, check=False).returncode
            == 0
        )


@pytest.fixture
def machine(tmp_path: Path, database_url: str) -> Iterator[Machine]:
    with listening.listen("127.0.0.1", 0, insist=True) as free:
        port = free.getsockname()[1]
    with EmbeddedValkey(tmp_path / "valkey", log_path=tmp_path / "valkey.log") as valkey:
        place = Machine(tmp_path, database_url, valkey.url, port)
        yield place
        for process in place.running:
            process.close()


def test_prepare_migrates_and_keeps_the_first_key_once(machine: Machine) -> None:
    settings = Settings(data_dir=machine.directory / "data")
    first = machine.start("prepare")
    assert first.popen.wait(timeout=60) == 0, first.log.read_text()
    kept = credentials_path(settings)
    before = kept.read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600
    second = machine.start("prepare")
    assert second.popen.wait(timeout=60) == 0, second.log.read_text()
    assert kept.read_bytes() == before


@pytest.mark.parametrize("name", [name for name in OURS if name != "prepare"])
def test_a_service_gets_healthy_and_ends_in_its_grace_time(machine: Machine, name: str) -> None:
    service = machine.start(name)
    service.wait_until(lambda: machine.is_healthy(name))
    service.popen.send_signal(signal.SIGTERM)
    grace_s = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert service.popen.wait(timeout=grace_s) in (0, -signal.SIGTERM), service.log.read_text()


def test_valkey_asks_for_its_password_and_keeps_everything(tmp_path: Path) -> None:
    with listening.listen("127.0.0.1", 0, insist=True) as free:
        port = free.getsockname()[1]
    command = [
        interpolated(part).replace("6379", str(port)) for part in SERVICES["valkey"]["command"]
    ]
    environment = {k: interpolated(v) for k, v in SERVICES["valkey"]["environment"].items()}
    environment["PATH"] = f"{binaries.valkey().parent}:{os.environ['PATH']}"
    service = Process("valkey", command, environment, tmp_path)
    try:
        client = redis.Redis(port=port, password="vksecret")

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        service.wait_until(answers)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        client.close()
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        command_line = Path(f"/proc/{service.popen.pid}/cmdline").read_bytes()
        assert b"vksecret" not in command_line
    finally:
        service.close()
    assert not list(tmp_path.glob("*.rdb"))


def test_postgres_takes_its_settings(tmp_path: Path) -> None:
    identity = identity_for_postgres(tmp_path, binaries.postgres())
    log_path = tmp_path / "postgres.log"
    initdb.create_cluster(tmp_path / "data", identity=identity, log_path=log_path, durable=False)
    _, *options = SERVICES["postgres"]["command"]
    place = ["-D", str(tmp_path / "data"), "-k", str(tmp_path), "-c", "listen_addresses="]
    server = spawn(
        [binaries.postgres(), *place, *options],
        log_path=log_path,
        death_signal=signal.SIGKILL,
        identity=identity,
        clean_environment=True,
    )
    try:
        conninfo = make_conninfo(host=str(tmp_path), user="batchgen", dbname="batchgen")
        connection = connected(conninfo, server)
        with connection:
            for option in options[1::2]:
                name, _, value = option.partition("=")
                row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
                assert row == (value,)
        connection.close()
    finally:
        end(server, ((signal.SIGINT, 5.0),))


def connected(conninfo: str, server: "subprocess.Popen[bytes]") -> "psycopg.Connection[Any]":
    while True:
        try:
            return psycopg.connect(conninfo)
        except psycopg.OperationalError:
            if server.poll() is not None:
                raise
