"""Errors as answers: one table from the domain's tree to HTTP statuses, and their two forms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from batchgen.domain.errors import (
    BatchgenError,
    Conflict,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    TooLarge,
    Unavailable,
    UnknownOption,
    UserError,
)

log = structlog.get_logger(__name__)

# The nearest ancestor in the tree decides. What is not listed is our fault: 500.
STATUSES: Mapping[type[BatchgenError], int] = {
    UnknownOption: 422,
    InvalidRequest: 400,
    NotFound: 404,
    Conflict: 409,
    NotAuthenticated: 401,
    NotPermitted: 403,
    TooLarge: 413,
    Unavailable: 503,
}
PROBLEM_TYPE = "application/problem+json"
OPENAI_ROUTES = ("/v1/files", "/v1/batches", "/v1/models")

_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    500: "internal_error",
    503: "unavailable",
}
_TYPES = {401: "authentication_error", 403: "permission_error"}
_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    # The official client would send a conflict again by itself, and only lose time.
    409: {"X-Should-Retry": "false"},
}
_LONGEST_PARAM = 64


class OpenAIError(BaseModel):
    """What an OpenAI error says."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorEnvelope(BaseModel):
    """An error on the OpenAI routes."""

    error: OpenAIError


class Problem(BaseModel):
    """An error on the native routes (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str | None
    param: str | None


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, before it takes one of the two forms."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def openai(self) -> OpenAIErrorEnvelope:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return OpenAIErrorEnvelope(
            error=OpenAIError(
                message=self.message,
                type=_TYPES.get(self.status, kind),
                param=self.param,
                code=self.code,
            )
        )

    @property
    def problem(self) -> Problem:
        return Problem(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.message,
            code=self.code,
            param=self.param,
        )

    def answer(self, path: str) -> JSONResponse:
        """The answer in the form that belongs to the path."""
        if path.startswith(OPENAI_ROUTES):
            return JSONResponse(
                self.openai.model_dump(), status_code=self.status, headers=self.headers
            )
        return JSONResponse(
            self.problem.model_dump(),
            status_code=self.status,
            headers=self.headers,
            media_type=PROBLEM_TYPE,
        )


def documented(form: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The error answers of a group of routes, for the description of the interface."""
    return {
        "4XX": {"description": "The caller can mend it", "model": form},
        "5XX": {"description": "The service cannot do it now", "model": form},
    }


def with_problem_types(description: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description with the media type that problems really have."""
    for operations in description["paths"].values():
        for operation in operations.values():
            for answer in operation["responses"].values():
                content = answer.get("content", {})
                schema = content.get("application/json", {}).get("schema", {})
                if schema.get("$ref") == f"#/components/schemas/{Problem.__name__}":
                    content[PROBLEM_TYPE] = content.pop("application/json")
    return description


def fault_of(error: Exception) -> Fault:
    """The fault that an exception stands for. Says nothing of what was sent, nor of the inside."""
    match error:
        case UserError():
            status = _status_of(error)
            return Fault(
                status=status,
                message=error.message,
                code=error.code,
                param=None if error.param is None else _short(error.param),
                headers=_HEADERS.get(status, {}),
            )
        case Unavailable():
            return Fault(
                status=503,
                message="a server that this needs cannot be reached: try again",
                code=_CODES[503],
                headers={"Retry-After": "2"},
            )
        case RequestValidationError():
            return _fault_of_body(error.errors())
        case HTTPException():
            return Fault(
                status=error.status_code,
                message=str(error.detail),
                code=_CODES.get(error.status_code, "invalid_request"),
                headers=dict(error.headers or {}),
            )
        case _:
            return Fault(
                status=500,
                message="an error inside the service; its log has more, under X-Request-ID",
                code=_CODES[500],
            )


def install(app: FastAPI) -> None:
    """Answer the exceptions that routes raise."""

    def answer(request: Request, error: Exception) -> JSONResponse:
        fault = fault_of(error)
        if fault.status >= 500:
            log.error("request_failed", exc_info=error)
        return fault.answer(request.url.path)

    for kind in (BatchgenError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _status_of(error: BatchgenError) -> int:
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def _fault_of_body(faults: Sequence[Mapping[str, Any]]) -> Fault:
    """pydantic's first fault: where and of what kind, without the input that it also holds."""
    first = faults[0]
    place = [str(step) for step in first["loc"]]
    inner = ".".join(place[1:]) if place and place[0] in {"body", "query", "header"} else ""
    if first["type"] == "json_invalid":
        return Fault(status=400, message="the body is not valid JSON", code="invalid_json")
    words = str(first["msg"])
    return Fault(
        status=400,
        message=f"{_short(inner) or 'the body'}: {words}",
        code="missing" if first["type"] == "missing" else "invalid_value",
        param=_short(inner) or None,
    )


def _short(param: str) -> str:
    shown = param if param.isprintable() else ascii(param)[1:-1]
    return shown[:_LONGEST_PARAM]
