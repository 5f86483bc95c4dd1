"""What the doctor looks at on the machine itself: Python, disk, programs, users, devices."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from batchgen.domain.errors import StackError
from batchgen.local import binaries
from batchgen.local.check import Check
from batchgen.local.data_directory import MEND, nearest_existing, why_not_writable
from batchgen.local.devices import discover_devices
from batchgen.local.identity import Identity, identity_for_postgres
from batchgen.local.sockets import foreseen_socket_directory
from batchgen.settings import Settings

_OLDEST_PYTHON = (3, 11)
_SPACE_WANTED_BYTES = 2 * 2**30


def machine_checks(settings: Settings) -> Iterator[Check]:
    yield python_version()
    place = data_directory(settings.data_dir)
    yield place
    if place.ok:
        yield disk_space(settings.data_dir)
    if not settings.database_url:
        yield program("postgres", binaries.postgres)
        yield postgres_user(settings.data_dir / "postgres")
        yield socket_place("postgres", settings.data_dir / "postgres")
    if not settings.broker_url:
        yield program("valkey", binaries.valkey)
        yield socket_place("valkey", settings.data_dir / "valkey")
    yield devices()
    yield engine("openvino", "openvino_genai")


def python_version() -> Check:
    found = sys.version_info[:2]
    return Check(
        "python",
        ok=found >= _OLDEST_PYTHON,
        detail=f"{platform.python_version()} at {sys.executable}",
        mend="install Python 3.11 or newer and make a new environment with it",
    )


def data_directory(data_dir: Path) -> Check:
    """Whether it can be written, found by making a directory there and removing it again."""
    nearest = nearest_existing(data_dir)
    reason = why_not_writable(nearest)
    there = "" if nearest == data_dir.absolute() else " (not made yet)"
    return Check(
        "data directory",
        ok=reason is None,
        detail=f"{data_dir}{there}" if reason is None else f"{data_dir}: {reason} (in {nearest})",
        mend=MEND,
    )


def disk_space(data_dir: Path) -> Check:
    nearest = nearest_existing(data_dir)
    free = shutil.disk_usage(nearest).free
    return Check(
        "disk space",
        ok=free >= _SPACE_WANTED_BYTES,
        detail=f"{free / 2**30:.1f} GiB free under {nearest}",
        mend="make room, or move the data directory to a larger disk",
    )


def program(name: str, find: Callable[[], Path]) -> Check:
    """Whether a server's program is there and runs."""
    try:
        path = find()
    except StackError as error:
        return Check(f"{name} program", ok=False, detail=str(error), mend="install it as said")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "PG"))}
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False, env=clean
        )
        output, ok = (done.stdout or done.stderr).strip(), done.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        output, ok = str(error), False
    return Check(
        f"{name} program",
        ok=ok,
        detail=output,
        mend="the wheel is for another system: reinstall it on this machine, or name an outside "
        "server by BATCHGEN_DATABASE_URL or BATCHGEN_BROKER_URL",
    )


def postgres_user(home: Path) -> Check:
    words = {
        Identity.SAME: f"as this user (uid {os.geteuid()})",
        Identity.NAMESPACE: "as an ordinary user of a user namespace of its own",
        Identity.NOBODY: "as uid 65534, because this machine forbids user namespaces to root",
        Identity.REACHING_NOBODY: "as uid 65534 with the right to pass through closed directories, "
        "because this machine forbids user namespaces to root",
    }
    try:
        detail = words[identity_for_postgres(home, binaries.postgres())]
    except StackError as error:
        return Check("postgres user", ok=False, detail=str(error), mend="install it as said")
    return Check("postgres user", ok=True, detail=f"runs {detail}")


def socket_place(name: str, home: Path) -> Check:
    place = foreseen_socket_directory(home)
    return Check(
        f"{name} socket",
        ok=place is not None,
        detail=f"in {place}" if place else f"no place: {home} is too long a path for one",
        mend="set XDG_RUNTIME_DIR, make /tmp writable, or choose a shorter --data-dir",
    )


def devices() -> Check:
    found = discover_devices()
    names = ", ".join(f"{device.name} ({device.description})" for device in found.usable)
    return Check(
        "devices",
        ok=not found.unusable,
        detail="; ".join((names, *found.unusable)),
        mend="see the reason; until then the devices named first are served",
    )


def engine(name: str, module: str) -> Check:
    """Whether an engine's runtime can be imported, in a child process."""
    mend = f"`pip install 'batchgen[{name}]'`"
    if find_spec(module) is None:
        return Check(f"engine {name}", ok=False, detail="not installed", mend=mend)
    code = f"import {module}; print(getattr({module}, '__version__', 'installed'))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(f"engine {name}", ok=False, detail="its import takes over 60 s", mend=mend)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return Check(
        f"engine {name}",
        ok=done.returncode == 0,
        detail=lines[-1] if lines else f"exit code {done.returncode}",
        mend=mend,
    )
