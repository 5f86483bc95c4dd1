"""Uploads are unpacked as they stream: whole, bounded in size and memory, never silently cut."""

import gzip
import itertools
import os
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from batchgen.domain.errors import InvalidRequest, TooLarge
from batchgen.formats.decompress import decompressed

TEXT = b'{"custom_id": "a"}\n' * 5_000 + os.urandom(50_000)
PACKERS: list[Callable[[bytes], bytes]] = [gzip.compress, zstandard.compress]
ROOM = 1 << 40


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def unpack(data: bytes, size: int = 4096, *, max_bytes: int = ROOM) -> bytes:
    return b"".join(decompressed(cut(data, size), max_bytes=max_bytes))


@pytest.mark.parametrize("size", [1, 3, 255, 4096, 1 << 20])
@pytest.mark.parametrize("pack", PACKERS)
def test_packed_uploads_come_out_as_they_went_in_whatever_the_chunks(
    pack: Callable[[bytes], bytes], size: int
) -> None:
    assert unpack(pack(TEXT), size) == TEXT


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("pack", PACKERS)
def test_concatenated_members_are_one_file(pack: Callable[[bytes], bytes], size: int) -> None:
    assert unpack(pack(b"one\n") + pack(b"") + pack(b"two\n"), size) == b"one\ntwo\n"


def test_many_tiny_members_are_one_file() -> None:
    assert unpack(gzip.compress(b"x\n") * 3_000, 1 << 20) == b"x\n" * 3_000
    assert unpack(zstandard.compress(b"x\n") * 3_000, 1 << 20) == b"x\n" * 3_000


def test_zero_bytes_after_the_last_gzip_member_are_padding() -> None:
    assert unpack(gzip.compress(b"x\n") + bytes(1024)) == b"x\n"


def test_a_zstd_file_may_begin_with_a_skippable_frame() -> None:
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    assert unpack(skippable + zstandard.compress(b"x\n") + skippable) == b"x\n"


@pytest.mark.parametrize("data", [b"", b"{", b"{}\n", b"\x1f", b"\x28\xb5", TEXT])
def test_what_is_not_packed_passes_through(data: bytes) -> None:
    assert unpack(data, 1) == data


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_any_plain_chunks_pass_through(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    if not whole.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")) and whole[1:4] != b"\x2a\x4d\x18":
        assert b"".join(decompressed(chunks, max_bytes=ROOM)) == whole


@pytest.mark.parametrize("end", [4, 10, 10_000, -1])
@pytest.mark.parametrize("pack", PACKERS)
def test_a_cut_off_upload_is_refused_not_shortened(
    pack: Callable[[bytes], bytes], end: int
) -> None:
    with pytest.raises(InvalidRequest):
        unpack(pack(TEXT)[:end])


@pytest.mark.parametrize("pack", PACKERS)
def test_garbage_behind_or_inside_packed_data_is_refused(pack: Callable[[bytes], bytes]) -> None:
    packed = pack(TEXT)
    with pytest.raises(InvalidRequest):
        unpack(packed + b"garbage, not a member")
    middle = len(packed) // 2
    with pytest.raises(InvalidRequest):
        unpack(packed[: middle - 64] + os.urandom(128) + packed[middle + 64 :] + b"x" * 10_000)


@pytest.mark.parametrize("data", [b"x" * 101, gzip.compress(b"x" * 101)], ids=["plain", "gzip"])
def test_the_limit_counts_unpacked_bytes_and_is_exact(data: bytes) -> None:
    assert len(unpack(data, max_bytes=101)) == 101
    with pytest.raises(TooLarge):
        unpack(data, max_bytes=100)


def gzip_bomb() -> Iterator[bytes]:
    """10 MB that unpack to 10 GB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    megabyte = bytes(1 << 20)
    for _ in range(10_000):
        yield packer.compress(megabyte)


def zstd_bomb() -> Iterator[bytes]:
    """Chunks of 2 MB that unpack to 60 GB each."""
    frame = zstandard.compress(bytes(1 << 28), 1)
    return itertools.repeat(frame * 240)


def n_bytes_until_refused(chunks: Iterator[bytes], max_bytes: int) -> int:
    seen = 0
    try:
        for piece in decompressed(chunks, max_bytes=max_bytes):
            seen += len(piece)
    except TooLarge:
        return seen
    raise AssertionError("the bomb went off")


@pytest.mark.parametrize("bomb", [gzip_bomb, zstd_bomb])
def test_a_bomb_is_refused_at_the_limit_within_bounded_memory(
    bomb: Callable[[], Iterator[bytes]],
) -> None:
    chunks = bomb()
    tracemalloc.start()
    seen = n_bytes_until_refused(chunks, 300 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen <= 300 << 20
    assert peak < 32 << 20


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    settings = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    with pytest.raises(InvalidRequest):
        unpack(packer.compress(b"x" * 1000) + packer.flush())
