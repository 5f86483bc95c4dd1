"""One holder a directory: a lock that the kernel drops when its holder dies."""

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from batchgen.domain.errors import StackError


class DirectoryLock:
    """An exclusive lock on a file, which also says who holds it."""

    def __init__(self, path: Path):
        self._path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self, *, what: str, mend: str) -> None:
        """Take the lock. Raises StackError with the holder's pid and `mend` where it is taken."""
        if self._fd is not None:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StackError(
                f"cannot write {self._path}: {error.strerror}; choose a directory that this user "
                "may write with --data-dir"
            ) from error
        try:
            _lock(fd)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StackError(
                    f"{self._path.parent} is on a file system without locks ({error.strerror}): "
                    "choose a local directory with --data-dir"
                ) from error
            pid = holder(self._path)
            by = f" by process {pid}" if pid else ""
            raise StackError(f"{what} is already in use{by}: {mend}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)  # the file stays: removing it would let two holders in
            self._fd = None


def holder(path: Path) -> int | None:
    """The process that holds the lock at `path`; None where nobody does.

    Raises StackError where this user may not look.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StackError(
            f"cannot read {path}: {error.strerror}; be the user whose data directory it is, or "
            "choose another with --data-dir or BATCHGEN_DATA_DIR"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None


def _lock(fd: int) -> None:
    # Who only asks for the holder has it shared for some microseconds: that is no holder.
    for wait_s in (0.01, 0.02, 0.04):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(wait_s)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
