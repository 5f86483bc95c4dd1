"""The object store: a directory, S3, Google Cloud, Azure or memory, behind one small interface.

Keys are paths made by the server (`files/file-1`). Objects are written once, under a new key, and
are visible whole or not at all. All methods block; they may be called from several threads.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from batchgen.domain.errors import InvalidRequest, NotFound
from batchgen.storage.object_buckets import open_bucket
from batchgen.storage.object_directory import Directory

_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stored:
    """An object that has been written. `sha256` is in hex."""

    key: str
    size: int
    sha256: str


class Sink(Protocol):
    """An object on its way in; it exists from `finish` on."""

    def write(self, chunk: bytes) -> None: ...

    def finish(self) -> None: ...

    def abort(self) -> None: ...


class Backend(Protocol):
    """Where the bytes lie. Raises NotFound for missing objects, else Unavailable."""

    def create(self, key: str) -> Sink: ...

    def size(self, key: str) -> int: ...

    def read(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end), fewer where the object ends before."""
        ...

    def stream(self, key: str, start: int, end: int | None, chunk: int) -> Iterator[bytes]: ...

    def delete(self, key: str) -> None: ...

    def list(self, prefix: str) -> Iterator[str]: ...

    def remove_abandoned(self, older_than_s: float, /) -> int: ...


class Writer:
    """One object being written, hashed as it goes. Nothing exists under its key before `finish`."""

    def __init__(self, key: str, sink: Sink) -> None:
        self.key = key
        self.size = 0
        self._sink = sink
        self._hash = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Raises Unavailable."""
        self._sink.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def finish(self) -> Stored:
        """Make the object durable and visible. Raises Unavailable."""
        self._sink.finish()
        return Stored(self.key, self.size, self._hash.hexdigest())

    def abort(self) -> None:
        """Leave nothing behind."""
        self._sink.abort()


class ObjectStore:
    """Objects by key. Every method may raise Unavailable."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @classmethod
    def from_url(cls, url: str) -> "ObjectStore":
        """The store at a `file://`, `s3://`, `gs://`, `az://` or `memory://` URL.

        Credentials of the clouds are read from their own usual environment variables. Raises
        InvalidRequest for other URLs.
        """
        if url.startswith("file://"):
            return cls(Directory.from_url(url))
        return cls(open_bucket(url))

    def open_writer(self, key: str) -> Writer:
        """Begin an object, to be written piece by piece."""
        return Writer(key, self._backend.create(_checked(key)))

    def put(self, key: str, data: bytes) -> Stored:
        """Write an object; when this returns it is durable."""
        return self.put_stream(key, (data,))

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> Stored:
        """Write an object from chunks, holding none of it longer than needed.

        If `chunks` raises, so does this, and nothing is left behind.
        """
        writer = self.open_writer(key)
        try:
            for chunk in chunks:
                writer.write(chunk)
            return writer.finish()
        except BaseException:
            writer.abort()
            raise

    def size(self, key: str) -> int:
        """Bytes of the object. Raises NotFound."""
        return self._backend.size(_checked(key))

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except NotFound:
            return False
        return True

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end), all of them. Raises NotFound, also where the object is shorter."""
        if start == end:
            return b""
        data = self._backend.read(_checked(key), start, end)
        if len(data) != end - start:
            raise NotFound(f"object '{key}' ends at byte {start + len(data)}, before {end}")
        return data

    def stream(
        self, key: str, start: int = 0, end: int | None = None, chunk: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        """Bytes [start, end) (to the object's end without `end`) in chunks of about `chunk` bytes.

        Raises NotFound.
        """
        return self._backend.stream(_checked(key), start, end, chunk)

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is gone already, and no error."""
        self._backend.delete(_checked(key))

    def list(self, prefix: str = "") -> Iterator[str]:
        """The keys of the objects in the folder `prefix` and below."""
        folder = prefix.removesuffix("/")
        return self._backend.list(_checked(folder) if folder else "")

    def remove_abandoned(self, older_than_s: float) -> int:
        """Remove what killed writers left behind; returns how many.

        In buckets that is the business of their own lifecycle rules.
        """
        return self._backend.remove_abandoned(older_than_s)


def _checked(key: str) -> str:
    # Keys come from the server; this is the wall behind the wall.
    if len(key) > 512 or not _KEY.fullmatch(key):
        raise InvalidRequest(f"{key[:80]!r} is no object key", param="key")
    return key
