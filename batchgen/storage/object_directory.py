"""Objects as files of a local directory, durable when written.

Plain system calls, because obstore's local store neither syncs to disk nor streams at the disk's
speed (measured: 0.3 GB/s against more than 10 from the page cache).
"""

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from batchgen.domain.errors import InvalidRequest, NotFound, Unavailable

_PARTIAL = ".partial"


class Directory:
    """A directory of objects, readable by its owner only."""

    def __init__(self, root: Path) -> None:
        self._root = root
        with _writing(str(root)):
            (root / _PARTIAL).mkdir(mode=0o700, parents=True, exist_ok=True)
            root.chmod(0o700)

    @classmethod
    def from_url(cls, url: str) -> "Directory":
        """Raises InvalidRequest where the URL holds no absolute path of this machine."""
        parts = urlsplit(url)
        path = Path(unquote(parts.path))
        if parts.netloc not in ("", "localhost") or not path.is_absolute():
            raise InvalidRequest(f"'{url}' must be file:// and an absolute path", param="store_url")
        return cls(path)

    def create(self, key: str) -> "_FileSink":
        with _writing(key):
            return _FileSink(self._root / _PARTIAL / secrets.token_hex(12), self._root / key)

    def size(self, key: str) -> int:
        with self._there(key):
            found = (self._root / key).stat()
        if not stat.S_ISREG(found.st_mode):
            raise NotFound(f"no object '{key}'")
        return found.st_size

    def read(self, key: str, start: int, end: int) -> bytes:
        return b"".join(self.stream(key, start, end, end - start))

    def stream(self, key: str, start: int, end: int | None, chunk: int) -> Iterator[bytes]:
        with self._there(key), (self._root / key).open("rb", buffering=0) as file:
            file.seek(start)
            left = chunk if end is None else end - start
            while left > 0 and (piece := file.read(min(chunk, left))):
                if end is not None:
                    left -= len(piece)
                yield piece

    @contextmanager
    def _there(self, key: str) -> Iterator[None]:
        try:
            with _disk_errors(key):
                yield
        except NotFound:
            self._raise_if_gone()
            raise

    def _raise_if_gone(self) -> None:
        # An object that is gone is given up for lost; a disk that is not mounted must not be.
        if not (self._root / _PARTIAL).is_dir():
            raise Unavailable(f"the object store's directory {self._root} is gone")

    def delete(self, key: str) -> None:
        try:
            with self._there(key):
                (self._root / key).unlink()
        except NotFound:
            return

    def list(self, prefix: str) -> Iterator[str]:
        self._raise_if_gone()
        for folder, folders, names in os.walk(self._root / prefix):
            if _PARTIAL in folders:
                folders.remove(_PARTIAL)
            folders.sort()
            for name in sorted(names):
                yield (Path(folder) / name).relative_to(self._root).as_posix()

    def remove_abandoned(self, older_than_s: float, /) -> int:
        n = 0
        with _writing(_PARTIAL):
            for path in (self._root / _PARTIAL).iterdir():
                try:
                    age_s = time.time() - path.stat().st_mtime
                except FileNotFoundError:
                    continue
                if age_s >= older_than_s:
                    path.unlink(missing_ok=True)
                    n += 1
        return n


class _FileSink:
    """Written aside, then synced and renamed: a reader sees the whole object or none of it."""

    def __init__(self, partial: Path, target: Path) -> None:
        self._partial = partial
        self._target = target
        self._fd: int | None = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, chunk: bytes) -> None:
        if self._fd is None:
            raise ValueError("the object is finished or abandoned")
        view = memoryview(chunk)
        with _writing(self._target.name):
            while view:
                view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        if self._fd is None:
            raise ValueError("the object is finished or abandoned")
        with _writing(self._target.name):
            os.fsync(self._fd)
            self._close()
            _make_folder(self._target.parent)
            self._partial.replace(self._target)
            _sync_folder(self._target.parent)

    def abort(self) -> None:
        self._close()
        with _writing(self._target.name):
            self._partial.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    # Without this the renamed entry itself may be lost with the machine's power.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise NotFound(f"no object '{what}'") from error
    except OSError as error:
        raise _unavailable(what, error) from error


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Nothing that is missing is the caller's fault: the place to write to is gone."""
    try:
        yield
    except OSError as error:
        raise _unavailable(what, error) from error


def _unavailable(what: str, error: OSError) -> Unavailable:
    return Unavailable(f"the object store cannot do it: {what}: {error.strerror}")
