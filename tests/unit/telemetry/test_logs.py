"""Log lines: declared keys only, nothing of a prompt, no secret."""

import ast
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from batchgen.domain.errors import Conflict
from batchgen.telemetry.logs import LOG_KEYS, configure

CANARY = "canary-prompt-7f3a"
SECRET = "bg_0123456789ab_" + "5" * 48


Lines = Callable[[], list[dict[str, object]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """All that was logged so far; logging is as it was afterwards."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure("INFO", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers, root.level = handlers, level
    structlog.configure(**before)


def fail() -> None:
    raise ValueError(CANARY)


def test_a_line_is_an_event_with_declared_keys(lines: Lines) -> None:
    structlog.get_logger("here").info("request", status=200, route="/v1/jobs")
    (line,) = lines()
    assert (line["event"], line["status"], line["route"]) == ("request", 200, "/v1/jobs")
    assert (line["level"], line["logger"]) == ("info", "here")
    assert set(line) - {"event"} <= set(LOG_KEYS)


def test_an_undeclared_key_loses_its_value(lines: Lines) -> None:
    structlog.get_logger("here").info("request", prompt=CANARY, body={"a": CANARY})
    (line,) = lines()
    assert line["undeclared"] == ["body", "prompt"]
    assert CANARY not in json.dumps(line)


def test_a_key_loses_its_secret_and_a_url_its_password(
    lines: Lines,
) -> None:
    log = structlog.get_logger("here")
    log.warning("failed", reason=f"not {SECRET} at postgresql://me:hunter2@db/x")
    logging.getLogger("library").warning("got %s", SECRET)
    for line in lines():
        assert SECRET not in json.dumps(line)
        assert "hunter2" not in json.dumps(line)
    log.warning("failed", reason=[SECRET])
    assert "bg_0123456789ab_***" in json.dumps(lines())


def test_an_exception_is_its_type_and_place_and_not_its_words(
    lines: Lines,
) -> None:
    try:
        fail()
    except ValueError:
        structlog.get_logger("here").exception("broken")
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    ours, theirs = lines()
    for line in (ours, theirs):
        assert line["error"] == "ValueError"
        assert "test_logs.py" in str(line["frames"])
        assert CANARY not in json.dumps(line)
    assert theirs["text"] == "Exception in ASGI application"


def test_an_error_of_ours_keeps_its_words(lines: Lines) -> None:
    structlog.get_logger("here").error("broken", exc_info=Conflict("the job has ended"))
    assert lines()[0]["reason"] == "the job has ended"


def test_a_long_value_is_cut(lines: Lines) -> None:
    structlog.get_logger("here").info("x", reason="a" * 100_000)
    assert len(str(lines()[0]["reason"])) < 3_000


def test_the_level_is_kept(lines: Lines) -> None:
    structlog.get_logger("here").debug("quiet")
    logging.getLogger("sqlalchemy.engine").info("SELECT 1")
    assert lines() == []


def test_every_key_that_the_code_logs_is_declared() -> None:
    root = Path(__file__).parents[3]
    levels = {"debug", "info", "warning", "error", "exception", "log"}
    seen = set()
    for package in ("api", "batchgen", "workers"):
        for source in (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="log"), attr=level), keywords=keys
                    ) if level in levels:
                        seen |= {key.arg for key in keys} - {"exc_info"}
    assert seen
    assert seen <= set(LOG_KEYS)
