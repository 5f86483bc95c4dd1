"""OpenAI's files: uploaded as a stream, downloaded by ranges."""

from functools import partial
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field

from api.context import Context
from api.deps import ACaller, Caller, FileInPath, Here, as_file_id
from api.downloads import JSONL, serve
from api.openai.shapes import FileObject
from api.uploads import Form
from api.values import Deleted, Page, Query, Text
from batchgen.domain.errors import InvalidRequest, TooLarge
from batchgen.domain.jobs import Key
from batchgen.services import results
from batchgen.services.files import Upload, check_purpose, delete
from batchgen.storage import files

router = APIRouter(prefix="/v1/files", tags=["files"], dependencies=[ACaller])

_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": 3_600,
                            "maximum": 2_592_000,
                        },
                    },
                }
            }
        },
    }
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file", "content": {JSONL: {"schema": {"type": "string"}}}},
    206: {"description": "The range asked for", "content": {JSONL: {"schema": {"type": "string"}}}},
}
# Boundaries and part headers around the file.
_FORM_BYTES = 64 * 1024


class Listing(Query):
    """Which files, and in what order."""

    after: Text | None = None
    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"
    purpose: Text | None = None


@router.post("", openapi_extra=_FORM)
async def upload_file(request: Request, key: Caller, here: Here) -> FileObject:
    """Upload a JSONL file, plain or as gzip or zstd; it is unpacked as it comes in."""
    _check_length(request, here)
    upload = await run_sync(Upload, here.store, here.settings)
    try:
        form = Form(request.headers, on_file=upload.write, on_text=_check_text)
        await form.read(request.stream())
        return await run_sync(partial(_commit, here, key, upload, form))
    except BaseException:
        # Also where the client has left or the server is told to end: nothing stays behind.
        upload.abort()
        raise


@router.get("")
def list_files(key: Caller, here: Here, listing: Annotated[Listing, InQuery()]) -> Page[FileObject]:
    """The project's files by time of creation."""
    with here.database.unit_of_work() as tx:
        found = files.page(
            tx,
            key.project,
            limit=listing.limit + 1,
            after=None if listing.after is None else as_file_id(listing.after, "after"),
            purpose=listing.purpose,
            ascending=listing.order == "asc",
        )
    return Page.of(((file.id, FileObject.of(file)) for file in found), listing.limit)


@router.get("/{file_id}")
def get_file(file_id: FileInPath, key: Caller, here: Here) -> FileObject:
    """One file, without its content."""
    with here.database.unit_of_work() as tx:
        return FileObject.of(files.get(tx, file_id, project=key.project))


@router.delete("/{file_id}")
def delete_file(file_id: FileInPath, key: Caller, here: Here) -> Deleted:
    """Delete a file. 409 while a job that has not ended reads it."""
    delete(here.database, file_id, key.project)
    return Deleted(id=file_id, object="file")


@router.get("/{file_id}/content", response_class=Response, responses=_CONTENT)
def get_content(request: Request, file_id: FileInPath, key: Caller, here: Here) -> Response:
    """The content, whole or by a Range; an interrupted download resumes with If-Range."""
    file, content = results.of_file(here.database, file_id, key.project)
    return serve(request, here.store, content, filename=file.filename)


@router.head("/{file_id}/content", include_in_schema=False)
def head_content(request: Request, file_id: FileInPath, key: Caller, here: Here) -> Response:
    """Size and ETag of the content."""
    return get_content(request, file_id, key, here)


def _check_length(request: Request, here: Context) -> None:
    length = request.headers.get("content-length", "")
    most = here.settings.max_file_bytes + _FORM_BYTES
    if length.isdecimal() and int(length) > most:
        raise TooLarge(
            f"the file is longer than {here.settings.max_file_bytes} bytes",
            code="file_too_large",
            param="file",
        )


def _check_text(name: str, value: str) -> None:
    match name:
        case "purpose":
            check_purpose(value)
        case "expires_after[anchor]":
            if value != "created_at":
                raise InvalidRequest("the anchor must be created_at", param=name)
        case _:
            if not (value.isascii() and value.isdecimal() and 3_600 <= int(value) <= 2_592_000):
                raise InvalidRequest("seconds must lie between 3600 and 2592000", param=name)


def _commit(here: Context, key: Key, upload: Upload, form: Form) -> FileObject:
    purpose = form.text("purpose")
    if purpose is None:
        raise InvalidRequest("the form holds no purpose", code="missing", param="purpose")
    anchor = form.text("expires_after[anchor]")
    seconds = form.text("expires_after[seconds]")
    if (anchor is None) != (seconds is None):
        raise InvalidRequest("expires_after needs an anchor and seconds", param="expires_after")
    file = upload.commit(
        here.database,
        project=key.project,
        purpose=purpose,
        filename=form.filename,
        expires_after_s=None if seconds is None else int(seconds),
    )
    here.metrics.uploaded_bytes.inc(file.bytes)
    return FileObject.of(file)
