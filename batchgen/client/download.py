"""Downloads that go on where they broke off."""

from typing import BinaryIO

from batchgen.client.transport import Transport
from batchgen.domain.errors import Conflict, Unavailable

_CHUNK = 1 << 20


def fetch_file(transport: Transport, file_id: str, out: BinaryIO) -> int:
    """Write a finished file to `out`; a broken connection is resumed by Range. Returns its bytes.

    Raises Unavailable where the server stays away, Conflict where the file was replaced meanwhile.
    """
    path = f"/v1/files/{file_id}/content"
    n_got = 0
    etag: str | None = None
    for attempt in transport.attempts():
        headers = {"Range": f"bytes={n_got}-", "If-Range": etag} if n_got and etag else {}
        try:
            with transport.stream("GET", path, headers=headers) as response:
                if n_got and response.status_code != 206:
                    raise Conflict(f"file {file_id} changed while it was downloaded: start again")
                etag = response.headers.get("ETag", etag)
                for chunk in response.iter_bytes(_CHUNK):
                    out.write(chunk)
                    n_got += len(chunk)
                    attempt.progressed = True
            return n_got
        except Unavailable as error:
            attempt.failed(error, again=not n_got or etag is not None)
    raise AssertionError("attempts end by raising")


def fetch_live(transport: Transport, path: str, out: BinaryIO) -> int:
    """Write what there is so far to `out`; returns its bytes. What still grows has no ranges."""
    n_got = 0
    with transport.stream("GET", path) as response:
        for chunk in response.iter_bytes(_CHUNK):
            out.write(chunk)
            n_got += len(chunk)
    return n_got
