"""A scan finds every fault of a file by its line, and cuts what is good into shards."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.domain.jobs import Fault, ShardPlan
from batchgen.formats.cutting import Limits
from batchgen.formats.jsonl import BOM, request_lines
from batchgen.formats.validate import Scan, custom_id_of

CHAT = "/v1/chat/completions"


def line(custom_id: Any = "a", *, body: Any = None, **over: Any) -> bytes:
    """A good input line, but for what `over` says; a field that is None is left out."""
    fields = {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | (body or {}),
    } | over
    return json.dumps({k: v for k, v in fields.items() if v is not None}).encode()


NO_BODY = b'{"custom_id": "b", "method": "POST", "url": "/v1/chat/completions"}'


def scan(
    *lines: bytes,
    model: str | None = None,
    chunk: int = 1 << 20,
    data: bytes | None = None,
    **limits: int,
) -> tuple[Scan, list[ShardPlan]]:
    whole = b"".join(found + b"\n" for found in lines) if data is None else data

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(whole), chunk):
            yield whole[start : start + chunk]

    found = Scan(chunks, endpoint=CHAT, model=model, limits=Limits(**limits))
    return found, list(found)


def faults(*lines: bytes, **options: Any) -> list[tuple[str, int | None, str | None]]:
    return [(f.code, f.line, f.param) for f in scan(*lines, **options)[0].faults]


def test_a_good_file_has_no_faults_and_names_its_model() -> None:
    found, plans = scan(line("a"), line("b"))
    assert found.faults == []
    assert (found.model, found.n_requests, found.n_lines) == ("m", 2, 2)
    assert [p.n_requests for p in plans] == [2]


# custom_id


def test_a_repeated_custom_id_is_a_fault_of_its_line() -> None:
    found, _ = scan(line("a"), line("b"), line("a"))
    [fault] = found.faults
    assert (fault.code, fault.line, fault.param) == ("duplicate_custom_id", 3, "custom_id")
    assert "'a'" in fault.message
    assert "line 1" in fault.message


def test_a_custom_id_repeated_ten_thousand_lines_later_is_found() -> None:
    lines = [line(f"request-{i}") for i in range(10_002)]
    lines[10_001] = line("request-0")
    assert faults(*lines, chunk=4096) == [("duplicate_custom_id", 10_002, "custom_id")]


def test_ids_that_differ_only_in_escapes_are_the_same() -> None:
    escaped = line("\u00e9").replace(b"\\u00e9", "\u00e9".encode())
    assert escaped != line("\u00e9")
    assert faults(line("\u00e9"), escaped) == [("duplicate_custom_id", 2, "custom_id")]


def test_a_duplicate_is_found_even_where_the_line_has_another_fault() -> None:
    assert faults(line("a"), line("a", method="GET")) == [
        ("invalid_method", 2, "method"),
        ("duplicate_custom_id", 2, "custom_id"),
    ]


@pytest.mark.parametrize(
    ("custom_id", "code"),
    [
        (None, "missing_required_parameter"),
        ("", "invalid_value"),
        ("x" * 513, "invalid_value"),
        (7, "invalid_type"),
        (["a"], "invalid_type"),
    ],
)
def test_a_custom_id_is_a_string_of_1_to_512_characters(custom_id: Any, code: str) -> None:
    assert faults(line("x" * 512), line(custom_id)) == [(code, 2, "custom_id")]


# the envelope


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (line("b", method="GET"), "invalid_method", "method"),
        (line("b", method=None), "missing_required_parameter", "method"),
        (line("b", url="/v1/responses"), "url_mismatch", "url"),
        (line("b", url=None), "missing_required_parameter", "url"),
        (line("b", url=3), "url_mismatch", "url"),
        (line("b", extra=1), "unknown_parameter", "extra"),
        (line("b", body={"stream": True}), "stream_unsupported", "body.stream"),
        (line("b", body={"stream": 1}), "stream_unsupported", "body.stream"),
        (line("b", body={"model": "m2"}), "model_mismatch", "body.model"),
        (line("b", body={"model": 3}), "invalid_type", "body.model"),
        (line("b", body={"model": ""}), "invalid_value", "body.model"),
        (line("b", body={"model": None}), "missing_required_parameter", "body.model"),
        (NO_BODY.replace(b"}", b', "body": []}'), "invalid_type", "body"),
        (NO_BODY, "missing_required_parameter", "body"),
    ],
)
def test_a_bad_envelope_is_a_fault_of_its_line(bad: bytes, code: str, param: str) -> None:
    assert faults(line("a"), bad, line("c")) == [(code, 2, param)]


def test_every_fault_of_a_line_is_told() -> None:
    assert [code for code, _, _ in faults(line("", method="PUT", url="/x", extra=1))] == [
        "unknown_parameter",
        "invalid_value",
        "invalid_method",
        "url_mismatch",
    ]


def test_an_unknown_field_names_the_nearest() -> None:
    found, _ = scan(line("a", costum_id="b"))
    assert "custom_id" in found.faults[0].message


def test_stream_false_and_null_ask_for_nothing() -> None:
    assert faults(line("a", body={"stream": False}), line("b", body={"stream": None})) == []


def test_the_lines_may_leave_out_the_model_that_the_job_names() -> None:
    bare = line("b", body={"model": None})
    assert faults(line("a"), bare, model="m") == []
    assert faults(line("a"), bare, model="other") == [("model_mismatch", 1, "body.model")]


def test_without_a_model_of_the_job_the_first_line_names_it() -> None:
    assert faults(line("a", body={"model": None}), line("b")) == [
        ("missing_required_parameter", 1, "body.model")
    ]


# not JSON


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"not json",
        b"[]",
        b'"text"',
        b"null",
        b"{}{}",
        line("b") + b" " + line("c"),
        line("b").replace(b'"hi"', b"NaN"),
        line("b").replace(b'"hi"', b"Infinity"),
        line("b").replace(b'"hi"', b'"\x01"'),
        line("b").replace(b'"hi"', b'"\\x"'),
        line("b").replace(b'"hi"', b"[1,]"),
        line("b").replace(b'"hi"', b"[" * 20_000 + b"]" * 20_000),
        b"\xef\xbb\xbf" + line("b"),
        b"\x0b",
    ],
)
def test_a_line_that_is_no_json_object_is_a_fault(bad: bytes) -> None:
    assert faults(line("a"), bad, line("z")) == [("invalid_json_line", 2, None)]


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\xbd", b"\xc3", b"caf\xe9"])
def test_a_line_that_is_not_utf8_is_a_fault_wherever_the_bytes_are(bad: bytes) -> None:
    for place in (b'"hi"', b'"user"', b'"a1"'):
        broken = line("a1").replace(place, b'"' + bad + b'"')
        assert faults(line("\u00e9"), broken, line("b")) == [("invalid_utf8", 2, None)]


def test_a_scan_of_utf16_says_that_it_is_not_utf8() -> None:
    found, _ = scan(data=line("a").decode().encode("utf-16"))
    assert found.faults[0].code == "invalid_utf8"


# what is tolerated


def test_crlf_blank_lines_bom_and_a_missing_last_newline_are_tolerated() -> None:
    data = BOM + line("a") + b"\r\n\r\n\n  \t\n" + line("b") + b"\r\n" + line("b")
    found, _ = scan(data=data)
    assert [(f.code, f.line) for f in found.faults] == [("duplicate_custom_id", 6)]
    assert (found.n_lines, found.n_requests) == (6, 3)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_other_line_ends_inside_strings_split_nothing(character: str) -> None:
    raw = line("a").replace(b'"hi"', json.dumps(character, ensure_ascii=False).encode())
    found, [plan] = scan(raw, line("b"))
    assert found.faults == []
    assert plan.n_requests == 2


@pytest.mark.parametrize("escape", ["\\u0000", "\\ud83d", "\\ude00", "\\ud83d\\ude00"])
def test_nul_and_surrogate_escapes_are_no_fault_of_the_file(escape: str) -> None:
    """Anywhere, the custom_id included."""
    odd = escape.encode()
    in_text = line("t").replace(b'"hi"', b'"' + odd + b'"')
    in_id = line("here").replace(b"here", odd)
    found, _ = scan(line("a"), in_text, in_id, line("b"))
    assert found.faults == []
    assert found.n_requests == 4
    assert custom_id_of(in_id) == json.loads(b'"' + odd + b'"')


def test_fault_messages_hold_no_nul_and_no_lone_surrogate() -> None:
    """They go into a database that takes neither."""
    odd = b"\\u0000\\ud83d"
    found, _ = scan(
        line("here").replace(b"here", odd),
        line("here").replace(b"here", odd),
        line("b", url="here").replace(b"here", odd),
        line("c", here=1).replace(b"here", odd),
        line("d", body={"model": "here"}).replace(b"here", odd),
    )
    assert len(found.faults) == 4
    for fault in found.faults:
        assert "\0" not in f"{fault.message}{fault.param}"
        f"{fault.message}{fault.param}".encode()


# whole files


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n \r\n", BOM, BOM + b"\n"])
def test_a_file_without_a_request_is_empty(data: bytes) -> None:
    found, plans = scan(data=data)
    assert found.faults == [Fault("empty_file", "the file holds no request")]
    assert plans == []


def test_a_line_too_large_is_a_fault_and_the_scan_goes_on() -> None:
    long = line("b").replace(b"hi", b"x" * 3_000)
    assert faults(line("a"), long, line("a"), max_line_bytes=2_000, chunk=100) == [
        ("line_too_large", 2, None),
        ("duplicate_custom_id", 3, "custom_id"),
    ]


def test_a_file_of_too_many_lines_is_refused() -> None:
    lines = [line(str(i)) for i in range(11)]
    assert faults(*lines[:10], max_lines=10) == []
    assert faults(*lines, max_lines=10) == [("too_many_lines", None, None)]


def test_a_scan_stops_after_so_many_faults_and_says_so() -> None:
    found = faults(*[b"{"] * 100, max_reported_faults=10)
    assert [n for _, n, _ in found] == [*range(1, 11), None]
    assert found[-1][0] == "too_many_faults"


def test_as_many_duplicates_as_faults_may_be_told_stop_the_scan_too() -> None:
    found = faults(*[line("a")] * 100, max_reported_faults=10)
    assert [n for _, n, _ in found] == [*range(2, 12), None]


def test_faults_come_in_the_order_of_the_lines() -> None:
    found = faults(line("a"), line("a"), b"{", line("b"), line("b", method="GET"))
    assert [n for _, n, _ in found] == [2, 3, 5, 5]


# shards


@given(
    kinds=st.lists(st.sampled_from([b"", b" ", b"\r", b"L", b"LONG"]), max_size=40),
    shard_lines=st.integers(1, 7),
    shard_bytes=st.integers(150, 900),
    chunk=st.integers(1, 400),
    has_bom=st.booleans(),
    ends_in_newline=st.booleans(),
)
def test_shards_hold_every_request_once_in_order_within_their_limits(
    *,
    kinds: list[bytes],
    shard_lines: int,
    shard_bytes: int,
    chunk: int,
    has_bom: bool,
    ends_in_newline: bool,
) -> None:
    lines = [
        line(f"r{i}", body={"x": "y" * 300} if kind == b"LONG" else None)
        if kind.startswith(b"L")
        else kind
        for i, kind in enumerate(kinds)
    ]
    data = (BOM if has_bom else b"") + b"\n".join(lines) + (b"\n" if ends_in_newline else b"")
    found, plans = scan(data=data, chunk=chunk, shard_lines=shard_lines, shard_bytes=shard_bytes)
    assert [p.seq for p in plans] == list(range(len(plans)))
    requests = []
    for plan in plans:
        piece = data[plan.byte_start : plan.byte_end]
        assert 1 <= plan.n_requests <= shard_lines
        assert len(piece) == plan.byte_end - plan.byte_start
        assert len(piece) <= shard_bytes or plan.n_requests == 1
        assert plan.est_tokens >= plan.n_requests
        inside = list(
            request_lines(piece, first_line=plan.first_line, first_index=plan.first_index)
        )
        assert len(inside) == plan.n_requests
        requests += [(r.index, r.line, r.raw) for r in inside]
    expected = [(n, raw) for n, raw in enumerate(lines, 1) if raw.strip()]
    assert requests == [(i, n, raw) for i, (n, raw) in enumerate(expected)]
    assert found.n_requests == len(expected)
    assert bool(found.faults) == (not expected)
