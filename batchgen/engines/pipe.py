"""A duplex pipe of msgpack frames, non-blocking at both ends, used by the host and its client.

A frame is a 32-bit little-endian length and that many bytes of msgpack. Neither end ever waits in a
write: what the other end has no room for stays in a buffer here, so two ends that both write cannot
block each other. What is in flight bounds the buffers.
"""

import contextlib
import select
import socket
import struct
import time
from typing import Any, Generic, TypeVar

import msgspec

Frame = TypeVar("Frame")

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16


class PipeClosed(Exception):
    """The other end is gone."""


class FramePipe(Generic[Frame]):
    """One end. `receives` is the union of the frames that the other end sends."""

    def __init__(self, sock: socket.socket, receives: Any):
        sock.settimeout(0)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(receives)
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._ended = False

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether something waits for room at the other end: then select for writing, too."""
        return bool(self._outgoing)

    def send(self, frame: msgspec.Struct) -> None:
        """Queue a frame and write what there is room for. Raises PipeClosed."""
        body = self._encoder.encode(frame)
        self._outgoing += _LENGTH.pack(len(body))
        self._outgoing += body
        self.flush()

    def flush(self) -> None:
        """Write what there is room for. Raises PipeClosed."""
        while self._outgoing:
            try:
                sent = self._sock.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError as error:
                raise PipeClosed from error
            del self._outgoing[:sent]

    def receive(self) -> list[Frame]:
        """The whole frames that are there now, without waiting.

        Raises PipeClosed when the other end is gone and all that it wrote has been returned.
        """
        while not self._ended:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._ended = True
                break
            self._incoming += data
        frames = self._decode()
        if self._ended and not frames:
            raise PipeClosed
        return frames

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until there is something to receive (True) or the time is over; flush meanwhile."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        events = poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        seen = events[0][1] if events else 0
        if seen & select.POLLOUT:
            self.flush()
        return bool(seen & ~select.POLLOUT)

    def drain(self, timeout_s: float) -> None:
        """Write all that is queued, for at most so long. Raises PipeClosed."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        while self._outgoing and (left := deadline - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.flush()

    def close(self) -> None:
        self._sock.close()

    def _decode(self) -> list[Frame]:
        frames: list[Frame] = []
        at = 0
        with memoryview(self._incoming) as view:
            while at + _LENGTH.size <= len(view):
                (size,) = _LENGTH.unpack_from(view, at)
                end = at + _LENGTH.size + size
                if end > len(view):
                    break
                frames.append(self._decoder.decode(view[at + _LENGTH.size : end]))
                at = end
        del self._incoming[:at]
        return frames
