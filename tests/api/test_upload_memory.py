"""An upload of any size passes through in pieces."""

import tracemalloc
from collections.abc import Iterator

import httpx
import pytest

from batchgen.settings import Settings

MIB = 2**20
SIZE = 64 * MIB


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Files large enough that one held in memory stands out from everything else."""
    return settings.model_copy(update={"max_file_bytes": SIZE})


def test_an_upload_is_never_held_in_memory(user: httpx.Client) -> None:
    half = b"x" * (MIB // 2)

    def body() -> Iterator[bytes]:
        yield b'--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--X\r\n'
        yield b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield from (half for _ in range(SIZE // len(half)))
        yield b"\r\n--X--\r\n"

    user.get("/healthz")
    tracemalloc.start()
    try:
        made = user.post(
            "/v1/files",
            content=body(),
            headers={"Content-Type": "multipart/form-data; boundary=X"},
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.json()["bytes"] == SIZE
    assert peak < SIZE // 4
