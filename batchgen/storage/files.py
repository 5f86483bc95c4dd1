"""Queries over files: uploaded objects, and the virtual files that a job's segments make."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, exists, func, or_, select, text, update

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import FileId, JobId, Project
from batchgen.domain.jobs import File, Section
from batchgen.domain.states import TERMINAL_JOB_STATES
from batchgen.storage.tables import files, jobs

_TERMINAL = [state.value for state in TERMINAL_JOB_STATES]


def insert_uploaded(
    tx: Connection,
    *,
    file_id: FileId,
    project: Project,
    purpose: str,
    filename: str,
    size: int,
    sha256: str,
    object_key: str,
    expires_after_s: int | None = None,
) -> None:
    _insert(
        tx,
        {
            "id": file_id,
            "project": project,
            "purpose": purpose,
            "filename": filename,
            "bytes": size,
            "sha256": sha256,
            "object_key": object_key,
        },
        expires_after_s,
    )


def reserve_uploaded(
    tx: Connection,
    *,
    file_id: FileId,
    project: Project,
    purpose: str,
    filename: str,
    size: int,
    object_key: str,
    for_s: int,
    expires_after_s: int | None = None,
) -> None:
    """A row for an object that is about to be written; nobody sees it before `confirm_uploaded`.

    Where that does not come within `for_s` seconds, the sweeper removes the object.
    """
    row = {
        "id": file_id,
        "project": project,
        "purpose": purpose,
        "filename": filename,
        "bytes": size,
        "sha256": "",
        "object_key": object_key,
        "deleted_at": func.now() + text(f"interval '{int(for_s)} seconds'"),
    }
    _insert(tx, row, expires_after_s)


def confirm_uploaded(tx: Connection, file_id: FileId, *, sha256: str) -> None:
    """The reserved file's object is there: now it is a file. Raises NotFound where too late."""
    changed = tx.execute(
        update(files)
        .where(files.c.id == file_id, files.c.deleted_at > func.now(), files.c.sha256 == "")
        .values(deleted_at=None, sha256=sha256)
    )
    if changed.rowcount == 0:
        raise NotFound(f"no file '{file_id}'", param="file_id")


def insert_produced(
    tx: Connection,
    *,
    file_id: FileId,
    project: Project,
    filename: str,
    size: int,
    sha256: str,
    job_id: JobId,
    section: Section,
    expires_after_s: int | None = None,
) -> None:
    _insert(
        tx,
        {
            "id": file_id,
            "project": project,
            "purpose": "batch_output",
            "filename": filename,
            "bytes": size,
            "sha256": sha256,
            "job_id": job_id,
            "section": section,
        },
        expires_after_s,
    )


def get(tx: Connection, file_id: FileId, *, project: Project, keep: bool = False) -> File:
    """Raises NotFound: also for a file of another project, or one deleted or expired.

    With `keep` nobody can delete it before the transaction ends.
    """
    query = select(files).where(files.c.id == file_id, files.c.project == project, _alive())
    row = tx.execute(query.with_for_update(read=True) if keep else query).first()
    if row is None:
        raise NotFound(f"no file '{file_id}'", param="file_id")
    return _file(row)


def keep_any(tx: Connection, file_ids: Sequence[FileId]) -> bool:
    """Whether one of these is there still; it stays until the transaction ends."""
    query = select(files.c.id).where(files.c.id.in_(file_ids), _alive())
    return tx.execute(query.with_for_update(read=True)).first() is not None


def sha256_of(tx: Connection, file_id: FileId) -> str:
    """The content's hash; also of a file that is deleted by now."""
    found: str = tx.execute(select(files.c.sha256).where(files.c.id == file_id)).scalar_one()
    return found


def page(
    tx: Connection,
    project: Project,
    *,
    limit: int,
    after: FileId | None = None,
    purpose: str | None = None,
    ascending: bool = False,
) -> list[File]:
    """By time of creation; `after` is the last id of the page before. Raises NotFound for a
    foreign `after`.
    """
    query = select(files).where(files.c.project == project, _alive())
    if purpose is not None:
        query = query.where(files.c.purpose == purpose)
    if after is not None:
        anchor = tx.execute(
            select(files.c.created_at).where(files.c.id == after, files.c.project == project)
        ).first()
        if anchor is None:
            raise NotFound(f"no file '{after}'", param="after")
        at = anchor.created_at
        tie = and_(
            files.c.created_at == at, files.c.id > after if ascending else files.c.id < after
        )
        beyond = files.c.created_at > at if ascending else files.c.created_at < at
        query = query.where(or_(beyond, tie))
    order = (
        (files.c.created_at, files.c.id)
        if ascending
        else (files.c.created_at.desc(), files.c.id.desc())
    )
    return [_file(row) for row in tx.execute(query.order_by(*order).limit(limit))]


def lock(tx: Connection, file_id: FileId, *, project: Project) -> File:
    """The file, which nobody can submit or delete before the transaction ends. Raises NotFound."""
    row = tx.execute(
        select(files)
        .where(files.c.id == file_id, files.c.project == project, _alive())
        .with_for_update()
    ).first()
    if row is None:
        raise NotFound(f"no file '{file_id}'", param="file_id")
    return _file(row)


def mark_deleted(tx: Connection, file_id: FileId, *, project: Project) -> File:
    """Raises NotFound. The object goes when the sweeper comes by."""
    found = get(tx, file_id, project=project)
    tx.execute(update(files).where(files.c.id == file_id).values(deleted_at=func.now()))
    return found


def mark_produced_deleted(tx: Connection, job_id: JobId) -> None:
    """The files of a job that runs again are no longer its results."""
    tx.execute(
        update(files)
        .where(files.c.job_id == job_id, files.c.deleted_at.is_(None))
        .values(deleted_at=func.now())
    )


def objects_to_remove(tx: Connection, *, limit: int) -> list[tuple[FileId, str]]:
    """Uploaded files that are deleted or expired and whose object is still there.

    What a job that has not ended reads stays until then.
    """
    read = exists().where(jobs.c.input_file_id == files.c.id, jobs.c.state.not_in(_TERMINAL))
    rows = tx.execute(
        select(files.c.id, files.c.object_key)
        .where(
            files.c.object_key.is_not(None),
            files.c.bytes > 0,
            or_(files.c.deleted_at <= func.now(), files.c.expires_at <= func.now()),
            ~read,
        )
        .limit(limit)
    )
    return [(FileId(row.id), row.object_key) for row in rows]


def results_to_remove(tx: Connection, *, limit: int) -> list[tuple[FileId, JobId]]:
    """Produced files of ended jobs of which no file is left to read.

    While the output or the error file is there, or the job runs again, its segments are needed.
    """
    sibling = files.alias()
    kept = exists().where(
        sibling.c.job_id == files.c.job_id,
        sibling.c.deleted_at.is_(None),
        or_(sibling.c.expires_at.is_(None), sibling.c.expires_at > func.now()),
    )
    rows = tx.execute(
        select(files.c.id, files.c.job_id)
        .join(jobs, jobs.c.id == files.c.job_id)
        .where(files.c.bytes > 0, ~_alive(), ~kept, jobs.c.state.in_(_TERMINAL))
        .limit(limit)
    )
    return [(FileId(row.id), JobId(row.job_id)) for row in rows]


def mark_removed(tx: Connection, file_id: FileId) -> None:
    """The object is gone: nothing is left of the file but its row."""
    tx.execute(
        update(files)
        .where(files.c.id == file_id)
        .values(bytes=0, deleted_at=func.coalesce(files.c.deleted_at, func.now()))
    )


def _insert(tx: Connection, values: Mapping[str, Any], expires_after_s: int | None) -> None:
    expires = (
        None
        if expires_after_s is None
        else func.now() + text(f"interval '{int(expires_after_s)} seconds'")
    )
    tx.execute(files.insert().values(**values, expires_at=expires))


def _alive() -> Any:
    return and_(
        files.c.deleted_at.is_(None),
        or_(files.c.expires_at.is_(None), files.c.expires_at > func.now()),
    )


def _file(row: Row[Any]) -> File:
    return File(
        id=FileId(row.id),
        project=Project(row.project),
        purpose=row.purpose,
        filename=row.filename,
        bytes=row.bytes,
        sha256=row.sha256,
        created_at=row.created_at,
        expires_at=row.expires_at,
        object_key=row.object_key,
        job_id=None if row.job_id is None else JobId(row.job_id),
        section=None if row.section is None else Section(row.section),
    )
