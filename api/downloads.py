"""Content over HTTP: whole or by one range, with a strong ETag, streamed from the object store."""

import re
from collections.abc import Iterator
from itertools import chain
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from batchgen.services.results import Content
from batchgen.storage.objects import ObjectStore

JSONL = "application/jsonl"
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def serve(
    request: Request,
    store: ObjectStore,
    content: Content,
    *,
    filename: str,
    media_type: str = JSONL,
) -> Response:
    """The answer to a GET or HEAD, by its Range, If-Range and If-None-Match headers.

    Several ranges at once, or a range that cannot be read, get the whole: HTTP allows that.
    """
    etag = f'"{content.tag}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
        "Content-Type": media_type,
    }
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    start, end, status = 0, content.size, 200
    if request.method == "GET" and request.headers.get("if-range", etag) == etag:
        asked = _asked(request.headers.get("range"), content.size)
        if asked is not None:
            start, end = asked
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{content.size}"
    headers["Content-Length"] = str(end - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return streamed(content.read(store, start, end), status=status, headers=headers)


def streamed(
    chunks: Iterator[bytes], *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer of what the iterator gives, begun once the first chunk is there.

    So what is missing from the start is an error, not a broken connection. Blocks: to be called in
    a thread.
    """
    first = next(chunks, b"")
    return StreamingResponse(
        chain((first,), chunks), status_code=status, headers=headers or {"Content-Type": JSONL}
    )


def _asked(header: str | None, size: int) -> tuple[int, int] | None:
    """The range [start, end); None for the whole. Raises HTTPException 416 where there is none."""
    match = _RANGE.fullmatch(header.replace(" ", "")) if header is not None else None
    if match is None or not (match[1] or match[2]):
        return None
    if match[1]:
        start = int(match[1])
        end = min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    else:
        start = max(size - int(match[2]), 0)
        end = size
    if start >= size:
        raise HTTPException(
            416,
            f"the file has {size} bytes: no such range",
            headers={"Content-Range": f"bytes */{size}", "Accept-Ranges": "bytes"},
        )
    return start, end


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags
