"""Typed dependencies of the routes: the context, the caller's key and scope, ids from the path."""

import re
from collections.abc import Callable
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Header, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.context import Context
from batchgen.domain.errors import (
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    UnknownOption,
)
from batchgen.domain.ids import CheckId, FileId, JobId, KeyId
from batchgen.domain.jobs import Key, Scope
from batchgen.services import keys

_T = TypeVar("_T")
_bearer = HTTPBearer(auto_error=False, description="An API key: bg_<id>_<secret>")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


async def context(request: Request) -> Context:
    return cast("Context", request.app.state.context)


async def nothing_asked_beside(request: Request) -> None:
    """A body says all there is to say. Raises UnknownOption for a query on a call with a body."""
    if request.method in {"POST", "PATCH"} and request.query_params:
        name = next(iter(request.query_params))
        raise UnknownOption(
            f"unknown query parameter '{name}': this call takes none", param=name[:100]
        )


def caller(
    request: Request,
    context: Annotated[Context, Depends(context)],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Key:
    """The key that the request carries. Raises NotAuthenticated."""
    if credentials is None:
        raise NotAuthenticated("an API key is needed: Authorization: Bearer bg_…")
    key = keys.authenticate(context.database, credentials.credentials)
    request.state.key = key
    return key


async def admin(key: Annotated[Key, Depends(caller)]) -> Key:
    """The same, with the admin scope. Raises NotPermitted."""
    if key.scope is not Scope.ADMIN:
        raise NotPermitted("this needs a key with the admin scope")
    return key


def _checked(pattern: str, kind: Callable[[str], _T], what: str, param: str, value: str) -> _T:
    # What cannot be an id of ours is not there: it need not reach the database.
    if re.fullmatch(pattern, value) is None:
        raise NotFound(f"no such {what}", param=param)
    return kind(value)


async def job_in_path(job_id: str) -> JobId:
    return as_job_id(job_id, "job_id")


async def batch_in_path(batch_id: str) -> JobId:
    return as_job_id(batch_id, "batch_id")


async def file_in_path(file_id: str) -> FileId:
    return as_file_id(file_id, "file_id")


async def key_in_path(key_id: str) -> KeyId:
    return _checked(r"[0-9a-f]{12}", KeyId, "key", "key_id", key_id)


async def model_in_path(name: str) -> str:
    return _checked(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}", str, "model", "model", name)


async def check_in_path(check_id: str) -> CheckId:
    return _checked(r"check_[0-9a-f]{24}", CheckId, "check", "check_id", check_id)


def as_job_id(value: str, param: str) -> JobId:
    """Raises NotFound for what cannot be one."""
    return _checked(r"batch_[0-9a-f]{24}", JobId, "job", param, value)


def as_file_id(value: str, param: str) -> FileId:
    """Raises NotFound for what cannot be one."""
    return _checked(r"file-[0-9a-f]{24}", FileId, "file", param, value)


async def idempotency_key(
    idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
) -> str | None:
    """A retried call with the same key makes no second job. Raises InvalidRequest."""
    if idempotency_key is not None and not _IDEMPOTENCY_KEY.fullmatch(idempotency_key):
        raise InvalidRequest(
            "an Idempotency-Key is 1 to 255 printable ASCII characters", param="Idempotency-Key"
        )
    return idempotency_key


Here = Annotated[Context, Depends(context)]
Caller = Annotated[Key, Depends(caller)]
AnAdmin = Depends(admin)
ACaller = Depends(caller)
JobInPath = Annotated[JobId, Depends(job_in_path)]
BatchInPath = Annotated[JobId, Depends(batch_in_path)]
FileInPath = Annotated[FileId, Depends(file_in_path)]
KeyInPath = Annotated[KeyId, Depends(key_in_path)]
CheckInPath = Annotated[CheckId, Depends(check_in_path)]
ModelInPath = Annotated[str, Depends(model_in_path)]
IdempotencyKey = Annotated[str | None, Depends(idempotency_key)]
