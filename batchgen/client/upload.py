"""A file as a multipart body that is made while it is sent."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Upload:
    """What is sent: the chunks once, under a name. `n_bytes` None where it is not known before."""

    filename: str
    chunks: Iterable[bytes]
    n_bytes: int | None = None
    purpose: str = "batch"


def multipart(upload: Upload, progress: Progress | None) -> tuple[dict[str, str], Iterator[bytes]]:
    """The request's headers and its body. `progress` gets the number of file bytes sent so far."""
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
        f"{upload.purpose}\r\n--{boundary}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="{_quoted(upload.filename)}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    if upload.n_bytes is not None:
        headers["Content-Length"] = str(len(head) + upload.n_bytes + len(tail))
    return headers, _body(head, upload.chunks, tail, progress)


def _body(
    head: bytes, chunks: Iterable[bytes], tail: bytes, progress: Progress | None
) -> Iterator[bytes]:
    yield head
    n_sent = 0
    for chunk in chunks:
        yield chunk
        n_sent += len(chunk)
        if progress is not None:
            progress(n_sent)
    yield tail


def _quoted(filename: str) -> str:
    # As browsers do it (HTML, section "Multipart form data").
    return filename.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
