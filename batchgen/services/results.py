"""What a job has produced, read as files that were never written as a whole."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import FileId, JobId, Project
from batchgen.domain.jobs import File, Job, Section
from batchgen.domain.states import TERMINAL_JOB_STATES
from batchgen.storage import files, jobs, segments
from batchgen.storage.objects import ObjectStore
from batchgen.storage.segments import Part
from batchgen.storage.session import Database

_SHARDS_AT_ONCE = 64
# A shard's checkpoints are replaced by its final segment once: more looks mean something is wrong.
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, end) of an object."""

    key: str
    start: int
    end: int


class Content:
    """Pieces of objects seen as one file of `size` bytes; `tag` is a strong validator of it."""

    def __init__(self, pieces: Sequence[Piece], tag: str) -> None:
        self._pieces = tuple(pieces)
        self._ends = tuple(accumulate(piece.end - piece.start for piece in pieces))
        self.size = self._ends[-1] if self._ends else 0
        self.tag = tag

    def read(self, store: ObjectStore, start: int, end: int) -> Iterator[bytes]:
        """Bytes [start, end) in chunks, of which one is held at a time.

        Raises NotFound where an object is gone, Unavailable where the store is.
        """
        number = bisect_right(self._ends, start)
        while start < end:
            piece, piece_end = self._pieces[number], self._ends[number]
            shift = piece.end - piece_end
            until = min(end, piece_end)
            yield from store.stream(piece.key, start + shift, until + shift)
            start = until
            number += 1


def of_file(database: Database, file_id: FileId, project: Project) -> tuple[File, Content]:
    """A file and its content. Raises NotFound."""
    with database.unit_of_work() as tx:
        file = files.get(tx, file_id, project=project)
        if file.object_key is not None:
            return file, Content([Piece(file.object_key, 0, file.bytes)], file.sha256)
        if file.job_id is None or file.section is None:
            raise NotFound(f"no content of file '{file_id}'", param="file_id")
        parts = segments.final_parts(tx, file.job_id, file.section)
    content = Content(_pieces(parts), file.sha256)
    if content.size != file.bytes:
        # A retry has reopened the job between the two looks: its files are withdrawn.
        raise NotFound(f"no file '{file_id}'", param="file_id")
    return file, content


def of_job(database: Database, job_id: JobId, project: Project, section: Section) -> Content | None:
    """A section of a job that has ended; None while it goes on. Raises NotFound (or deleted)."""
    with database.unit_of_work() as tx:
        job = jobs.get(tx, job_id, project=project)
        if job.state not in TERMINAL_JOB_STATES:
            return None
        file_id = _kept_as(job, section)
        if file_id is not None:
            files.get(tx, file_id, project=project)
        pieces = _pieces(segments.final_parts(tx, job_id, section))
    # Objects never change, so their places say what the bytes are.
    told = "\n".join(f"{piece.key}:{piece.start}:{piece.end}" for piece in pieces)
    return Content(pieces, hashlib.sha256(told.encode()).hexdigest())


def so_far(
    database: Database, store: ObjectStore, job_id: JobId, section: Section
) -> Iterator[bytes]:
    """The lines that a running job has, each once, in the order of the input."""
    with database.unit_of_work() as tx:
        n_shards = segments.n_shards(tx, job_id)
    for first in range(0, n_shards, _SHARDS_AT_ONCE):
        end = min(first + _SHARDS_AT_ONCE, n_shards)
        with database.unit_of_work() as tx:
            found = segments.parts_of_shards(tx, job_id, section, first=first, end=end)
        for seq, parts in groupby(found, key=lambda part: part.shard_seq):

            def again(seq: int = seq) -> list[Part]:
                with database.unit_of_work() as tx:
                    return segments.parts_of_shards(tx, job_id, section, first=seq, end=seq + 1)

            yield from _shard_so_far(store, list(parts), again)


def _shard_so_far(
    store: ObjectStore, parts: list[Part], again: Callable[[], list[Part]]
) -> Iterator[bytes]:
    for look in range(_LOOKS):
        try:
            if any(part.final for part in parts):
                chunks = Content(_pieces([p for p in parts if p.final]), "")
                stream = chunks.read(store, 0, chunks.size)
                begin = next(stream, b"")
            else:
                stream, begin = iter(()), _merged(store, parts)
        except NotFound:
            # The shard was finished meanwhile, and its checkpoints are gone: look again.
            if look + 1 == _LOOKS:
                raise
            parts = again()
            continue
        yield begin
        yield from stream
        return


def _merged(store: ObjectStore, parts: Sequence[Part]) -> bytes:
    lines: dict[int, bytes] = {}
    for part in parts:
        body = store.get_range(part.object_key, part.start, part.end)
        found = [line + b"\n" for line in body.split(b"\n")[:-1]]
        lines |= dict(zip(part.indexes, found, strict=True))
    return b"".join(lines[index] for index in sorted(lines))


def _pieces(parts: Sequence[Part]) -> list[Piece]:
    return [Piece(part.object_key, part.start, part.end) for part in parts]


def _kept_as(job: Job, section: Section) -> FileId | None:
    return job.error_file_id if section is Section.ERROR else job.output_file_id
