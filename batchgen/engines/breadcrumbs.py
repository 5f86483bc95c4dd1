"""Breadcrumbs: which requests the engine was working on, in shared memory that outlives a crash.

Layout, native byte order: one step counter, then `SLOTS` pairs (request id + 1, admission step); a
zero id is a free slot. The host writes a pair only when a request starts or ends, and the counter
once a step; the supervisor reads after the host's death, or the counter at any time as a sign of
life.
"""

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

SLOTS = 4096

_STEP = struct.Struct("=Q")
_SLOT = struct.Struct("=QQ")
_SIZE = _STEP.size + SLOTS * _SLOT.size


@dataclass(frozen=True)
class Breadcrumbs:
    """What a host was doing: its step number, and the admission step of each live request."""

    step: int
    live: dict[int, int]

    def age(self, request_id: int) -> int:
        """How many steps the request had been worked on, counting the one that was running."""
        return max(1, self.step - self.live[request_id] + 1)


class Trail:
    """The supervisor's side: owns the memory, hands its descriptor to a host, reads."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("batchgen-breadcrumbs")
        os.ftruncate(self.fd, _SIZE)
        self._memory = mmap.mmap(self.fd, _SIZE)

    def step(self) -> int:
        (step,) = _STEP.unpack_from(self._memory, 0)
        return int(step)

    def read(self) -> Breadcrumbs:
        live = {
            request_id - 1: admitted
            for request_id, admitted in _SLOT.iter_unpack(self._memory[_STEP.size :])
            if request_id
        }
        return Breadcrumbs(step=self.step(), live=live)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


class TrailWriter:
    """The host's side."""

    def __init__(self, fd: int):
        self._memory = mmap.mmap(fd, _SIZE)
        self._free = list(range(_SIZE - _SLOT.size, _STEP.size - 1, -_SLOT.size))
        self._offsets: dict[int, int] = {}
        self._step = 0

    def begin_step(self, started: Iterable[int]) -> None:
        """The next step begins, and these requests with it.

        More live requests than slots go unrecorded: they cannot be suspects, nothing else is lost.
        """
        self._step += 1
        for request_id in started:
            if self._free and request_id not in self._offsets:
                offset = self._offsets[request_id] = self._free.pop()
                _SLOT.pack_into(self._memory, offset, request_id + 1, self._step)
        _STEP.pack_into(self._memory, 0, self._step)

    def end(self, ids: Iterable[int]) -> None:
        """These requests have ended."""
        for request_id in ids:
            offset = self._offsets.pop(request_id, None)
            if offset is not None:
                _SLOT.pack_into(self._memory, offset, 0, 0)
                self._free.append(offset)

    def close(self) -> None:
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
