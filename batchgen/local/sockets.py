"""A private directory for a server's Unix socket, short enough for the kernel.

A socket's path is limited to 107 bytes, a data directory is not. The sockets lie in the server's
own directory where that is short and plain enough; else in a private directory elsewhere, whose
name follows from the server's directory and is written down in it.
"""

import hashlib
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from batchgen.domain.errors import StackError

MAX_SOCKET_PATH_BYTES = 107
_LONGEST_NAME = len("/.s.PGSQL.5432")
_RECORD = "socket-directory"
# A comma would be two hosts to libpq, and other signs would need quoting in one URL or another.
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")


def _fits(directory: Path) -> bool:
    text = str(directory)
    return (
        _PLAIN.fullmatch(text) is not None
        and len(os.fsencode(text)) + _LONGEST_NAME <= MAX_SOCKET_PATH_BYTES
    )


def _is_private(directory: Path, uid: int) -> bool:
    """Whether it is a directory, no link, ours and closed to others."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid in (os.geteuid(), uid)
        and stat.S_IMODE(status.st_mode) & 0o077 == 0
    )


def _takes_sockets(directory: Path) -> bool:
    """Whether a socket can be bound there; some network and shared file systems refuse."""
    path = directory / f".probe-{secrets.token_hex(2)}"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def _candidates(home: Path) -> Iterator[Path]:
    yield home / "sock"
    mark = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and _is_private(Path(runtime), os.geteuid()):
        yield Path(runtime) / f"batchgen-{mark}"
    for temporary in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 (TMPDIR itself may be too long)
        yield Path(temporary) / f"batchgen-{os.geteuid()}-{mark}"
    # Someone else sits on the names that can be foreseen: one that cannot.
    yield Path("/tmp") / f"batchgen-{secrets.token_hex(8)}"  # noqa: S108 (created 0700 and checked)


def socket_directory(home: Path, *, uid: int) -> Path:
    """A directory for the sockets of the server in `home`, owned by `uid`, closed to others.

    Raises StackError where no place can be found.
    """
    record = home / _RECORD
    recorded = [Path(record.read_text().strip())] if record.exists() else []
    for directory in (*recorded, *_candidates(home)):
        if not _fits(directory):
            continue
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError:
            continue
        if not _is_private(directory, uid) or not _takes_sockets(directory):
            continue
        if directory.lstat().st_uid != uid:
            os.chown(directory, uid, -1)
        if directory.parent != home:
            record.write_text(f"{directory}\n")
        return directory
    raise StackError(
        f"no place for the sockets of {home}: its path is too long or its file system takes no "
        "sockets, and neither XDG_RUNTIME_DIR nor /tmp can be used; make /tmp writable or choose "
        "a shorter --data-dir"
    )


def foreseen_socket_directory(home: Path) -> Path | None:
    """Where the sockets of the server in `home` would lie, as far as can be told without trying.

    Creates nothing; None where no place is in sight.
    """
    for directory in _candidates(home):
        parent = directory.parent
        while not parent.exists():
            parent = parent.parent
        usable = (
            _is_private(directory, os.geteuid())
            if directory.exists()
            else os.access(parent, os.W_OK | os.X_OK)
        )
        if _fits(directory) and usable:
            return directory
    return None


def forget_socket_directory(home: Path, directory: Path) -> None:
    """Remove a socket directory that lies outside `home`, once its server has ended."""
    if directory.parent == home:
        return
    try:
        directory.rmdir()
    except OSError:  # not empty, or gone: the next start looks at it again
        return
    (home / _RECORD).unlink(missing_ok=True)
