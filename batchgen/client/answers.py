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


def error_of(response: httpx.Response, url: str) -> BatchgenError:
    """The error that an answer with status 4xx or 5xx stands for; the body has been read.

    Both forms are understood: OpenAI's envelope and RFC 9457 problems.
    """
    status = response.status_code
    place = f"{response.request.method} {response.request.url.path}"
    answered = f"{url} answered {status} {response.reason_phrase} to {place}"
    said = _said(response)
    if said is None:
        # A proxy on the way, or another program's server.
        message, code, param = f"{answered}, but not as a batchgen API does", None, None
    else:
        message, code, param = said
    if status >= 500:
        return Unavailable(message if said is None else f"{answered}: {message}")
    kind = _KINDS.get(status, InvalidRequest)
    if kind is NotAuthenticated:
        message = f"{message.rstrip('.')}: {_KEY_MEND}"
    return kind(message, code=code, param=param)


def _said(response: httpx.Response) -> tuple[str, str | None, str | None] | None:
    """Message, code and param of either form; None where the body is of neither."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return None
    said = body["error"] if isinstance(body.get("error"), dict) else body
    message = said.get("message") or said.get("detail") or said.get("title")
    if not message:
        return None
    return str(message), _text(said.get("code")), _text(said.get("param"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
