"""Looking at a file without a server: what would be refused, and what is in it."""

import json
from collections.abc import Callable
from typing import Any

from batchgen.formats.check import check_file
from batchgen.formats.stats import file_stats

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def line(custom_id: str, url: str = CHAT, **body: Any) -> bytes:
    default: dict[str, Any] = (
        {"prompt": "hello"} if url == TEXT else {"messages": [{"role": "user", "content": "hello"}]}
    )
    whole = {"custom_id": custom_id, "method": "POST", "url": url}
    return json.dumps({**whole, "body": {"model": "m", **default, **body}}).encode() + b"\n"


def opens(*lines: bytes) -> Callable[[], list[bytes]]:
    return lambda: list(lines)


def test_a_good_file_is_valid_and_its_endpoint_is_the_first_lines() -> None:
    found = check_file(opens(b"\n", line("a", TEXT), line("b", TEXT)))
    assert found.is_valid
    assert (found.endpoint, found.model, found.n_requests, found.n_lines) == (TEXT, "m", 2, 3)
    assert (found.n_shards, found.n_failing, found.failures) == (1, 0, ())


def test_a_request_that_would_fail_is_told_yet_the_file_is_valid() -> None:
    found = check_file(opens(line("a"), line("b", temperature=9), line("c", seed=-1)))
    assert found.is_valid
    assert found.n_failing == 2
    assert [(f.line, f.param) for f in found.failures] == [(2, "temperature"), (3, "seed")]


def test_a_fault_of_the_file_makes_it_invalid() -> None:
    found = check_file(opens(line("a"), line("a"), line("b", TEXT)))
    assert not found.is_valid
    assert [(f.code, f.line) for f in found.faults] == [
        ("duplicate_custom_id", 2),
        ("url_mismatch", 3),
    ]


def test_a_file_that_cannot_be_read_at_all_is_invalid_not_an_error() -> None:
    for data in (b"", b"\xff\xfe", b"not json\n"):
        assert not check_file(opens(data)).is_valid


def test_statistics_tell_what_is_in_a_file() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    found = file_stats(
        [
            line("a", max_tokens=10),
            b"\n",
            line(
                "b",
                messages=[{"role": "system", "content": "xy"}, {"role": "user", "content": parts}],
            ),
            line("c", TEXT, model="other", max_tokens=30),
            line("d", TEXT, prompt=[1, 2, 3]),
            b"{broken\n",
        ]
    )
    assert (found.n_lines, found.n_blank, found.n_unreadable, found.n_requests) == (6, 1, 1, 5)
    assert found.endpoints == {CHAT: 2, TEXT: 2}
    assert found.models == {"m": 3, "other": 1}
    assert (found.prompt_chars.n, found.prompt_chars.total, found.prompt_chars.least) == (3, 15, 5)
    assert (found.prompt_tokens.n, found.prompt_tokens.most) == (1, 3)
    assert (found.max_tokens.n, found.max_tokens.mean) == (2, 20.0)
    assert found.line_bytes.n == 4


def test_statistics_of_nothing_are_empty() -> None:
    found = file_stats([])
    assert (found.n_bytes, found.n_lines, found.line_bytes.median) == (0, 0, None)


def test_the_text_of_a_response_is_its_input_and_its_instructions() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "12345"}]},
        {"type": "function_call_output", "call_id": "c", "output": "678"},
    ]
    bodies = [
        {"input": "four", "instructions": "seven..", "max_output_tokens": 9},
        {"input": items},
    ]
    lines = [json.dumps({"url": "/v1/responses", "body": body}).encode() for body in bodies]
    found = file_stats([b"\n".join(lines)])
    assert (found.prompt_chars.least, found.prompt_chars.most) == (8, 11)
    assert (found.max_tokens.n, found.max_tokens.most) == (1, 9)
