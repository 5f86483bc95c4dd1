"""Objects in S3, Google Cloud Storage, Azure or this process's memory, through obstore."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from batchgen.domain.errors import InvalidRequest, NotFound, Unavailable

_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
_RETRIES = 6
_RETRY_FOR = timedelta(seconds=30)
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Store


def open_bucket(url: str) -> "Bucket":
    """The bucket (and the prefix in it) at `url`. Raises InvalidRequest for other URLs."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return Bucket(MemoryStore())
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in ("file", "memory", *_SCHEMES))
        raise InvalidRequest(f"'{url}' is no object store; known: {known}", param="store_url")
    try:
        return Bucket(
            from_url(url, retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_FOR})
        )
    except (BaseError, ValueError) as error:
        raise InvalidRequest(f"'{url}': {_first_line(error)}", param="store_url") from error


class Bucket:
    """A bucket; buckets keep what they have acknowledged."""

    def __init__(self, store: "Store") -> None:
        self._store = store

    def create(self, key: str) -> "_MultipartSink":
        return _MultipartSink(self._store, key)

    def size(self, key: str) -> int:
        with _bucket_errors(key):
            return obstore.head(self._store, key)["size"]

    def read(self, key: str, start: int, end: int) -> bytes:
        with _bucket_errors(key):
            try:
                return bytes(obstore.get_range(self._store, key, start=start, end=end))
            except BaseError:
                # A range that begins beyond the end is an error of its own in every cloud.
                if start >= self.size(key):
                    return b""
                raise

    def stream(self, key: str, start: int, end: int | None, chunk: int) -> Iterator[bytes]:
        if end is not None and start >= end:
            return
        with _bucket_errors(key):
            if end is not None:
                found = obstore.get(self._store, key, options={"range": (start, end)})
            elif start:
                found = obstore.get(self._store, key, options={"range": {"offset": start}})
            else:
                found = obstore.get(self._store, key)
            for piece in found.stream(min_chunk_size=chunk):
                yield bytes(piece)

    def delete(self, key: str) -> None:
        try:
            with _bucket_errors(key):
                obstore.delete(self._store, key)
        except NotFound:
            return

    def list(self, prefix: str) -> Iterator[str]:
        with _bucket_errors(prefix):
            for page in obstore.list(self._store, prefix or None):
                for found in page:
                    yield found["path"]

    def remove_abandoned(self, _older_than_s: float, /) -> int:
        # Unfinished multipart uploads are the business of the bucket's lifecycle rules.
        return 0


class _MultipartSink:
    def __init__(self, store: "Store", key: str) -> None:
        self._key = key
        self._writer: obstore.WritableFile | None = obstore.open_writer(
            store, key, buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
        )

    def write(self, chunk: bytes) -> None:
        if self._writer is None:
            raise ValueError("the object is finished or abandoned")
        with _bucket_errors(self._key):
            self._writer.write(chunk)

    def finish(self) -> None:
        if self._writer is None:
            raise ValueError("the object is finished or abandoned")
        with _bucket_errors(self._key):
            self._writer.close()
        self._writer = None

    def abort(self) -> None:
        # A writer that is not closed never completes its upload: nothing appears under the key.
        self._writer = None


@contextmanager
def _bucket_errors(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"no object '{key}'") from error
    except (BaseError, OSError, ValueError) as error:
        raise Unavailable(f"the object store cannot do it: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    # What follows is obstore's debug output.
    return str(error).split("\n", 1)[0]
