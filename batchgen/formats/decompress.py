"""Uploads as plain bytes: gzip and zstd, known by their magic bytes, unpacked as they stream."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

import zstandard

from batchgen.domain.errors import InvalidRequest, TooLarge

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f
_LONGEST_MAGIC = 4

# Four bytes of zstd can stand for 128 KiB, and its decoder returns all it can at once: small bites
# are what bounds the memory (256 bytes: 8 MiB). gzip is bounded by its own output limit, and small
# bites keep the copying of what lies behind a member's end cheap.
_ZSTD_BITE = 256
_GZIP_BITE = 16 * 1024
_GZIP_OUTPUT = 1024 * 1024
_GZIP_WBITS = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW = 32 * 1024 * 1024


class Decompressor:
    """A stream fed in chunks, given back as plain bytes in pieces of at most about 8 MiB.

    Concatenated gzip members and zstd frames are one stream, as their own tools have it. Raises
    TooLarge as soon as more than `max_bytes` have come out, InvalidRequest for corrupt data.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_out = 0
        self._head = b""
        self._codec: _Codec | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What the stream holds up to the end of `chunk`, as far as it is known yet."""
        if self._codec is None:
            self._head += chunk
            if len(self._head) < _LONGEST_MAGIC:
                return
            chunk, self._head = self._head, b""
            self._codec = _codec_for(chunk)
        yield from self._counted(self._codec.feed(chunk))

    def finish(self) -> Iterator[bytes]:
        """The rest. Raises InvalidRequest where the stream ends inside compressed data."""
        if self._codec is None:
            self._codec = _codec_for(self._head)
            yield from self._counted(self._codec.feed(self._head))
        self._codec.finish()

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._n_out += len(piece)
            if self._n_out > self._max_bytes:
                raise TooLarge(
                    f"the file holds more than {self._max_bytes} bytes (counted uncompressed)",
                    code="file_too_large",
                    param="file",
                )
            if piece:
                yield piece


def decompressed(chunks: Iterable[bytes], *, max_bytes: int) -> Iterator[bytes]:
    """`chunks` as plain bytes. Raises as `Decompressor` does."""
    stream = Decompressor(max_bytes)
    for chunk in chunks:
        yield from stream.feed(chunk)
    yield from stream.finish()


class _Codec(Protocol):
    def feed(self, chunk: bytes) -> Iterator[bytes]: ...

    def finish(self) -> None: ...


class _Plain:
    def feed(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def finish(self) -> None:
        return


class _Gzip:
    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=_GZIP_WBITS)
        self._in_member = False
        self._n_members = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for bite in _bites(chunk, _GZIP_BITE):
            yield from self._unpack(bite)

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        while data:
            if not self._in_member and self._n_members:
                # gzip's own tool lets zero bytes follow the last member: tape blocks are padded so.
                data = data.lstrip(b"\0")
                if not data:
                    return
            try:
                piece = self._member.decompress(data, _GZIP_OUTPUT)
            except zlib.error as error:
                raise _corrupt("gzip", error) from error
            self._in_member = True
            yield piece
            if self._member.eof:
                data = self._member.unused_data
                self._member = zlib.decompressobj(wbits=_GZIP_WBITS)
                self._in_member = False
                self._n_members += 1
            else:
                data = self._member.unconsumed_tail

    def finish(self) -> None:
        if self._in_member or not self._n_members:
            raise _truncated("gzip")


class _Zstd:
    def __init__(self) -> None:
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._in_frame = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for bite in _bites(chunk, _ZSTD_BITE):
            data = bite
            while data:
                try:
                    piece = self._frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise _corrupt("zstd", error) from error
                self._in_frame = not self._frame.eof
                data = b""
                if self._frame.eof:
                    data = self._frame.unused_data
                    self._frame = self._unpacker.decompressobj()
                yield piece

    def finish(self) -> None:
        if self._in_frame:
            raise _truncated("zstd")


def _codec_for(head: bytes) -> _Codec:
    if head.startswith(_GZIP_MAGIC):
        return _Gzip()
    if head.startswith(_ZSTD_MAGIC):
        return _Zstd()
    if head[1:4] == _ZSTD_SKIPPABLE_MAGIC and 0x50 <= head[0] <= 0x5F:
        return _Zstd()
    return _Plain()


def _bites(chunk: bytes, size: int) -> Iterator[bytes]:
    if len(chunk) <= size:
        yield chunk
        return
    view = memoryview(chunk)
    for start in range(0, len(chunk), size):
        yield bytes(view[start : start + size])


def _corrupt(kind: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the file's {kind} data is corrupt: {error}", code="invalid_compressed_data", param="file"
    )


def _truncated(kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"the file's {kind} data ends too early: was the upload cut off?",
        code="truncated_compressed_data",
        param="file",
    )
