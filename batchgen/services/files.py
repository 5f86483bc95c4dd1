"""Uploaded files: in as a stream, unpacked on the way; out of reach once deleted."""

from batchgen.domain.errors import Conflict, InvalidRequest, TooLarge
from batchgen.domain.ids import FileId, Project, new_file_id
from batchgen.domain.jobs import File
from batchgen.formats.decompress import Decompressor
from batchgen.settings import Settings
from batchgen.storage import files, jobs
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

PURPOSES = ("batch",)
_LONGEST_NAME = 255
# How long the object store may take to make an object durable.
_RESERVED_S = 3_600
# Packed data is never much longer than what it holds, unless it is made to keep us busy.
_PACKING_BYTES = 2**20


class Upload:
    """A file on its way in. It exists from `commit` on; `abort` before that leaves nothing behind.

    All methods block. `write` and `commit` raise TooLarge, InvalidRequest for corrupt compressed
    data, or Unavailable.
    """

    def __init__(self, store: ObjectStore, settings: Settings) -> None:
        self._id = new_file_id()
        self._max_bytes = settings.max_file_bytes
        self._unpacked = Decompressor(settings.max_file_bytes)
        self._writer = store.open_writer(f"files/{self._id}")
        self._n_given = 0

    def write(self, chunk: bytes) -> None:
        """Take the next bytes of the file, packed or plain as the user has it."""
        self._n_given += len(chunk)
        if self._n_given > self._max_bytes + _PACKING_BYTES:
            raise TooLarge(
                f"the file is longer than {self._max_bytes} bytes",
                code="file_too_large",
                param="file",
            )
        for piece in self._unpacked.feed(chunk):
            self._writer.write(piece)

    def commit(
        self,
        database: Database,
        *,
        project: Project,
        purpose: str,
        filename: str,
        expires_after_s: int | None = None,
    ) -> File:
        """The file is whole: keep it."""
        check_purpose(purpose)
        for piece in self._unpacked.finish():
            self._writer.write(piece)
        # The row comes first, unseen: killed in between, the sweeper finds the object by it.
        with database.unit_of_work() as tx:
            files.reserve_uploaded(
                tx,
                file_id=self._id,
                project=project,
                purpose=purpose,
                filename=_presentable(filename) or f"{self._id}.jsonl",
                size=self._writer.size,
                object_key=self._writer.key,
                for_s=_RESERVED_S,
                expires_after_s=expires_after_s,
            )
        stored = self._writer.finish()
        with database.unit_of_work() as tx:
            files.confirm_uploaded(tx, self._id, sha256=stored.sha256)
            return files.get(tx, self._id, project=project)

    def abort(self) -> None:
        self._writer.abort()


def check_purpose(purpose: str) -> None:
    """Raises InvalidRequest for a purpose that is none of ours."""
    if purpose not in PURPOSES:
        raise InvalidRequest(
            f"purpose must be one of: {', '.join(PURPOSES)}",
            code="invalid_purpose",
            param="purpose",
        )


def delete(database: Database, file_id: FileId, project: Project) -> File:
    """The file is gone for everybody. Raises NotFound, or Conflict while a live job reads it."""
    with database.unit_of_work() as tx:
        files.lock(tx, file_id, project=project)
        users = jobs.live_users_of(tx, file_id)
        if users:
            raise Conflict(
                f"file {file_id} is the input of {users[0]}, which has not ended: cancel it first",
                code="file_in_use",
                param="file_id",
            )
        return files.mark_deleted(tx, file_id, project=project)


def _presentable(filename: str) -> str:
    """A name that any file system and header can hold; folders are not part of it."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in name if c.isprintable())[:_LONGEST_NAME].strip()
