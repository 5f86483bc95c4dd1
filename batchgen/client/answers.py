"""An error answer of the server as an error of the domain."""

from typing import Any

import httpx

from batchgen.domain.errors import (
    BatchgenError,
    Conflict,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    TooLarge,
    Unavailable,
    UserError,
)

_KINDS: dict[int, type[UserError]] = {
    401: NotAuthenticated,
    403: NotPermitted,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}
_KEY_MEND = "give one with --key, or set BATCHGEN_API_KEY"
_LONGEST_EXCERPT = 200


def error_of(response: httpx.Response, url: str) -> BatchgenError:
    """The error that an answer with status 4xx or 5xx stands for; the body has been read.

    Both forms are understood: OpenAI's envelope and RFC 9457 problems.
    """
    status = response.status_code
    message, code, param = _said(response)
    if status >= 500:
        place = f"{response.request.method} {response.request.url.path}"
        return Unavailable(f"{url} answered {status} to {place}: {message}")
    kind = _KINDS.get(status, InvalidRequest)
    if kind is NotAuthenticated:
        message = f"{message.rstrip('.')}: {_KEY_MEND}"
    return kind(message, code=code, param=param)


def _said(response: httpx.Response) -> tuple[str, str | None, str | None]:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        excerpt = " ".join(response.text.split())[:_LONGEST_EXCERPT]
        return excerpt or response.reason_phrase or str(response.status_code), None, None
    said = body["error"] if isinstance(body.get("error"), dict) else body
    message = said.get("message") or said.get("detail") or said.get("title")
    return str(message or response.reason_phrase), _text(said.get("code")), _text(said.get("param"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
