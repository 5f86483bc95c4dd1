"""Downloads that go on where they broke off."""

from typing import BinaryIO

from batchgen.client.transport import Transport
from batchgen.domain.errors import Conflict, Unavailable


def fetch(transport: Transport, path: str, out: BinaryIO) -> int:
    """Write what is at `path` to `out`; returns its bytes.

    What has an ETag is finished: a broken connection is then resumed by Range. What still grows
    (the results so far) is not. Raises Unavailable where the server stays away, Conflict where the
    content was replaced meanwhile.
    """
    n_got = 0
    etag: str | None = None
    for attempt in transport.attempts():
        headers = {"Range": f"bytes={n_got}-", "If-Range": etag} if n_got and etag else {}
        try:
            with transport.stream("GET", path, headers=headers) as response:
                if n_got and response.status_code != 206:
                    raise Conflict(f"{path} changed while it was downloaded: start again")
                etag = response.headers.get("ETag", etag)
                for chunk in response.iter_bytes():
                    out.write(chunk)
                    n_got += len(chunk)
                    attempt.progressed = True
            return n_got
        except Unavailable as error:
            attempt.failed(error, again=not n_got or etag is not None)
    raise AssertionError("attempts end by raising")
