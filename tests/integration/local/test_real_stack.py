"""The stack with its real children: API, control worker, beat and a worker of the processor."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from batchgen.domain.errors import StackError
from batchgen.local import armed, doctor, state
from batchgen.local.credentials import Credentials, read_credentials
from batchgen.local.detached import down, up_detached
from batchgen.local.identity import Identity
from batchgen.local.state import StackState
from batchgen.settings import Settings

ROUND_TRIP = Path(__file__).with_name("round_trip.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("real") / "data dir")


@pytest.fixture(scope="module")
def running(place: Settings) -> Iterator[StackState]:
    found = up_detached(place, port=0, device_names=["CPU"])
    yield found
    down(place)


@pytest.fixture
def kept(place: Settings, running: StackState) -> Credentials:
    found = read_credentials(place)
    assert found is not None
    return found


def test_every_part_runs_and_says_so(place: Settings, running: StackState) -> None:
    assert running.ready
    assert [part.name for part in running.parts if part.alive] == [
        *("postgres", "valkey", "api", "control", "beat", "device-cpu")
    ]
    assert state.status(place) == running


def test_the_kept_key_opens_the_api_and_no_key_does_not(kept: Credentials) -> None:
    url = f"{kept.api_url}/v1/models"
    assert httpx.get(url).status_code == 401
    opened = httpx.get(url, headers={"Authorization": f"Bearer {kept.api_key}"})
    assert opened.status_code == 200


def test_the_key_is_in_no_log(place: Settings, kept: Credentials) -> None:
    secret = kept.api_key.rpartition("_")[2]
    for log in place.log_dir.iterdir():
        assert secret not in log.read_text()


def test_a_second_start_in_the_background_is_refused(place: Settings, running: StackState) -> None:
    with pytest.raises(StackError, match=f"already in use by process {running.pid}"):
        up_detached(place)


def test_the_doctor_finds_nothing_wrong_with_a_running_stack(
    place: Settings, running: StackState
) -> None:
    found = {check.name: check for check in doctor.checks(place)}
    wrong = {name: check for name, check in found.items() if check.ok is False}
    assert set(wrong) <= {"devices", "disk space"}, wrong  # those are this machine's matter
    for name in ("stack", "database", "schema", "clock", "broker", "object store", "api"):
        assert found[name].ok, found[name]


def test_nothing_listens_but_the_api(running: StackState) -> None:
    ports = set()
    for part in running.parts:
        inodes = set()
        for fd in Path(f"/proc/{part.pid}/fd").iterdir():
            target = str(fd.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{part.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:  # 0A: listening
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    assert ports == {int(running.api_url.rpartition(":")[2])}


def test_an_ordinary_user_runs_the_whole_stack(tmp_path: Path, ordinary_user: Identity) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    os.chown(own, ordinary_user.uid, -1)
    wrapper = [sys.executable, "-I", "-S", armed.__file__, str(os.getpid()), "9"]
    done = subprocess.run(
        [*wrapper, ordinary_user.value, "keep", sys.executable, str(ROUND_TRIP), str(own / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    uid, status = done.stdout.split()
    assert status == "200"
    assert uid != "0"
