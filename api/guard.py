"""What every request passes: an id, a bound on its body, one log line, the request metrics."""

import logging
import secrets
import time
from collections.abc import Mapping

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Fault, fault_of
from batchgen.domain.jobs import Key
from batchgen.telemetry.metrics import HttpMetrics

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 1024 * 1024
# The only route that takes more; it counts for itself.
UPLOAD = ("POST", "/v1/files")
# Looked at every few seconds by supervisors and scrapers.
_UNLOGGED = frozenset({"/healthz", "/readyz", "/metrics"})
_REFUSED = frozenset({401, 403, 404})
_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, no-store",
}
_CLIENT_LEFT = 499


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=exchange.id)
        try:
            refusal = _refusal(scope)
            if refusal is None:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                await refusal.answer(scope["path"])(scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = exchange.status or _CLIENT_LEFT
        except Exception as error:
            log.exception("request_failed")
            if exchange.status:
                # Part of the answer is out: only a broken connection says that it is not whole.
                raise
            await fault_of(error).answer(scope["path"])(scope, receive, exchange.send)
        finally:
            self._note(scope, exchange)

    def _note(self, scope: Scope, exchange: "_Exchange") -> None:
        route = str(getattr(scope.get("route"), "path", "none"))
        method = scope["method"] if route != "none" else "none"
        status = exchange.status or _CLIENT_LEFT
        took_s = time.monotonic() - exchange.began
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(method, route).observe(took_s)
        if route in _UNLOGGED:
            return
        key: Key | None = scope.get("state", {}).get("key")
        log.log(
            logging.WARNING if status in _REFUSED else logging.INFO,
            "request_refused" if status in _REFUSED else "request",
            method=method,
            route=route,
            status=status,
            duration_ms=round(took_s * 1e3, 2),
            key=None if key is None else key.id,
            project=None if key is None else key.project,
        )


class _Exchange:
    """One request and its answer, on their way through."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = secrets.token_hex(8)
        self.began = time.monotonic()
        self.status = 0
        self._receive = receive
        self._send = send
        self._left = None if (scope["method"], scope["path"]) == UPLOAD else MAX_BODY_BYTES

    async def receive(self) -> Message:
        message = await self._receive()
        if self._left is not None and message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise HTTPException(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self.id
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


def _refusal(scope: Scope) -> Fault | None:
    headers = Headers(scope=scope)
    if headers.get("content-encoding", "identity").lower() != "identity":
        return Fault(
            status=415,
            message="Content-Encoding is not supported: send the body as it is (an uploaded file "
            "may itself be gzip or zstd)",
            code="unsupported_content_encoding",
        )
    length = headers.get("content-length", "0")
    is_upload = (scope["method"], scope["path"]) == UPLOAD
    if not is_upload and (not length.isdecimal() or int(length) > MAX_BODY_BYTES):
        return Fault(
            status=413,
            message=f"the body is longer than {MAX_BODY_BYTES} bytes",
            code="too_large",
        )
    return None
