"""Log lines: JSON on stderr, keys declared here, no prompt, no completion and no secret in them.

A line is an event (a fixed word of ours) and declared keys: ids, sizes, counts, reasons. A key that
is not declared loses its value on the way out, so that a careless call cannot leak a prompt.
"""

import logging
import re
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from batchgen.domain.errors import BatchgenError

LOG_KEYS: Mapping[str, str] = {
    "level": "how bad it is",
    "timestamp": "when, in UTC",
    "logger": "the module that says it",
    "request_id": "one HTTP request; also in its X-Request-ID header",
    "method": "HTTP method",
    "route": "the route's template, never the path itself",
    "status": "HTTP status of the answer",
    "duration_ms": "from the request's first byte to the answer's last",
    "key": "id of the API key",
    "project": "project of the API key",
    "code": "stable word of an error",
    "job": "id of a job",
    "file": "id of a file",
    "shard": "id of a shard",
    "session": "id of an engine session",
    "device": "id of a device",
    "pool": "name of a pool",
    "model": "name of a registered model",
    "task": "name of a doorbell",
    "reason": "why, in words that hold nothing of a request's text",
    "error": "type of an exception",
    "frames": "where an exception came from: file, line and function",
    "shards": "number of shards",
    "shards_freed": "number of leases given back",
    "lines": "number of request lines",
    "index": "a request's place in its file, from 0",
    "in_flight": "number of requests in the engine",
    "suspects": "number of requests that may have killed it",
    "size": "bytes",
    "check": "id of a model check",
    "cache": "an entry of the compile cache",
    "state": "of what the event is about",
    "text": "what a library says",
}

_SECRET = re.compile(r"\bbg_([0-9a-f]{12})_[0-9A-Za-z]+")
_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^@/\s]+@")
_LONGEST = 2_000
_FRAMES = 12


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Log to `stream` (default stderr) from now on, the libraries' own lines included."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ending: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        without_exception_text,
        only_declared_keys,
        without_secrets,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, library_text], processors=ending
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = []
        # Access lines hold whole paths, with whatever somebody put there; our own hold the route.
        logger.propagate = name != "uvicorn.access"
    # Queries and their parameters are told at INFO: they hold what users handed in.
    logging.getLogger("sqlalchemy").setLevel(max(number, logging.WARNING))


def library_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A library's message is no event of ours: it goes under a key of its own."""
    return {**event, "event": "library", "text": event.get("event")}


def without_exception_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """An exception as its type and frames: its message and values may hold a prompt.

    Only the messages of our own errors are kept; those are written to be read.
    """
    info = event.pop("exc_info", None)
    event.pop("exception", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["frames"] = _frames(error.__traceback__)
        if isinstance(error, BatchgenError):
            event.setdefault("reason", str(error))
    return event


def only_declared_keys(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Undeclared keys lose their values; their names stay, so that somebody declares them."""
    kept: MutableMapping[str, Any] = {}
    strangers = []
    for key, value in event.items():
        if key == "event" or key in LOG_KEYS:
            kept[key] = value
        else:
            strangers.append(key)
    if strangers:
        kept["undeclared"] = sorted(strangers)
    return kept


def without_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """API keys keep their id only, URLs lose their password, values are cut to a bounded length."""
    return {key: _scrubbed(value) for key, value in event.items()}


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        clean = _PASSWORD.sub(r"\1***@", _SECRET.sub(r"bg_\1_***", value))
        return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}…"
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    if isinstance(value, int | float | None):
        return value
    return _scrubbed(str(value))


def _frames(trace: TracebackType | None) -> list[str]:
    found = traceback.extract_tb(trace)[-_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in found]
