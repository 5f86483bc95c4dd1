"""The parts of the command line that need no server."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchgen.cli.engine_flags import spec_of
from batchgen.cli.options import settings_tree, texts
from batchgen.cli.output_file import written
from batchgen.cli.plain_lines import first_line, form_of, wrapped
from batchgen.cli.progress import Lines
from batchgen.cli.rates import Rate, Rates
from batchgen.cli.render import ago, clock_time, rounded, shown, size, span
from batchgen.client.events import Event, parsed
from batchgen.domain.errors import InvalidRequest
from tests.cli.shell import PROGRAM


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rates = Rates(window_s=10)
    assert rates.rate(0, 100).lines_s is None
    for second in range(21):
        speed = 1 if second <= 10 else 5
        rates.take(second, speed * second - (40 if second > 10 else 0), 10 * second)
    rate = rates.rate(20, 100)
    assert rate.lines_s == pytest.approx(5)
    assert rate.tok_s == pytest.approx(10)
    assert rate.eta_s == pytest.approx(20)


def test_a_rate_falls_while_nothing_comes_in_and_starts_anew_after_a_retry() -> None:
    rates = Rates()
    rates.take(0, 0, 0)
    rates.take(1, 10, 0)
    assert rates.rate(1, 1).lines_s == pytest.approx(10)
    assert rates.rate(10, 1).lines_s == pytest.approx(1)
    rates.take(11, 4, 0)
    assert rates.rate(11, 1).lines_s is None


def test_progress_in_a_log_is_a_line_a_state_and_one_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = iter([0.0, 1.0, 2.0, 12.0])
    lines = Lines(monotonic=lambda: next(now))
    usage = {"output_tokens": 0}
    for state, done in (("queued", 0), ("running", 0), ("running", 5), ("running", 50)):
        counts = {"total": 100, "completed": done, "failed": 0, "open": 100 - done}
        lines.show({"state": state, "counts": counts, "usage": usage})
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["queued", "running", "running"]
    assert "lines/s" in said[-1]
    assert "ETA" in said[-1]


def test_the_last_line_of_progress_has_the_rate_of_the_whole_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = iter([0.0, 100.0, 101.0])
    lines = Lines(monotonic=lambda: next(now))
    usage = {"output_tokens": 0}
    for state, done, whole in (
        ("running", 0, None),
        ("running", 10, None),
        ("completed", 1000, Rate(lines_s=9.9, tok_s=88.8)),
    ):
        counts = {"total": 1000, "completed": done, "failed": 0, "open": 1000 - done}
        lines.show({"state": state, "counts": counts, "usage": usage}, whole)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "completed  1,000/1,000  9.900 lines/s  88.80 tok/s"


def test_settings_pairs_become_typed_and_nested() -> None:
    tree = settings_tree(["a.b=1", "a.c=true", "d=text", 'e={"f": null}', 'g="7"'])
    assert tree == {"a": {"b": 1, "c": True}, "d": "text", "e": {"f": None}, "g": "7"}


@pytest.mark.parametrize(
    "pairs", [["a"], ["=1"], ["a..b=1"], ["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=1", "a=2"]]
)
def test_settings_pairs_in_each_others_way_are_refused(pairs: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        settings_tree(pairs)


def test_metadata_pairs_stay_text() -> None:
    assert texts(["a=1", "b=x=y"], "--meta") == {"a": "1", "b": "x=y"}
    with pytest.raises(InvalidRequest, match="twice"):
        texts(["a=1", "a=2"], "--meta")


def test_a_spec_file_is_read_by_its_suffix(tmp_path: Path) -> None:
    for name, text in (
        ("a.json", '{"scheduler_config": {"max_num_seqs": 4}}'),
        ("a.toml", "[scheduler_config]\nmax_num_seqs = 4\n"),
        ("a.yaml", "scheduler_config:\n  max_num_seqs: 4\n"),
    ):
        path = tmp_path / name
        path.write_text(text)
        made = spec_of(None, path, {"scheduler_config.cache_size": 2}, [])
        assert made == {
            "engine": "openvino",
            "scheduler_config": {"max_num_seqs": 4, "cache_size": 2},
        }
    for name, text in (("a.ini", ""), ("b.json", "{"), ("c.json", "[]"), ("d.yaml", "{")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(InvalidRequest):
            spec_of(None, path, {}, [])


def test_a_path_that_exists_here_is_made_absolute(tmp_path: Path) -> None:
    made = spec_of("openvino", None, {"path": "/no/such", "draft.path": str(tmp_path / ".")}, [])
    assert made["path"] == "/no/such"
    assert made["draft"]["path"] == str(tmp_path)


def test_plain_lines_keep_their_bytes_and_their_numbers() -> None:
    data = (
        b'\xef\xbb\xbf{"prompt": "a\xe2\x80\xa8b", "max_tokens":  3}\r\n\n'
        b'{"messages": [], "custom_id": "mine"}\n'
        b'{"prompt": "\\ud800"}\nnot json\n{"custom_id": "x", "url": "/u", "body": {}}'
    )
    lines = b"".join(wrapped([data[:7], data[7:]], mixed=True)).split(b"\n")
    first = json.loads(lines[0])
    assert first["custom_id"] == "line-1"
    assert first["url"] == "/v1/completions"
    assert b'{"prompt": "a\xe2\x80\xa8b", "max_tokens":  3}' in lines[0]
    assert lines[1] == b""
    assert json.loads(lines[2])["custom_id"] == "mine"
    assert json.loads(lines[2])["body"] == {"messages": []}
    assert json.loads(lines[3])["body"] == {"prompt": "\ud800"}
    assert lines[4] == b"not json"
    assert lines[5] == b'{"custom_id": "x", "url": "/u", "body": {}}'


@pytest.mark.parametrize(
    ("line", "plain", "endpoint"),
    [
        (b'{"messages": []}', True, "/v1/chat/completions"),
        (b'{"prompt": ""}', True, "/v1/completions"),
        (b'{"url": "/v1/completions", "body": {}}', False, "/v1/completions"),
        (b'{"url": 3}', False, None),
        (b"[]", False, None),
        (b"", False, None),
        (None, False, None),
    ],
)
def test_the_first_line_tells_the_form(
    line: bytes | None, plain: bool, endpoint: str | None
) -> None:
    form = form_of(line)
    assert (form.plain, form.endpoint) == (plain, endpoint)


def test_the_look_at_the_first_line_is_bounded() -> None:
    assert first_line([b"\n\n", b" \n{}\n"], longest=100) == b"{}"
    assert first_line(iter([b"x" * 50] * 1000), longest=100) is None
    assert first_line([b"\x1f\x8bnonsense"], longest=100) is None


def test_server_sent_events_are_cut_at_any_byte() -> None:
    stream = (
        ': hello\n\nevent: progress\ndata: {"a":\ndata: "\u2028"}\n\n'
        'id: 7\r\nevent: end\r\ndata: 1\r\n\r\ndata: "cut off'
    ).encode()
    expected = [Event("progress", {"a": "\u2028"}), Event("end", 1, "7")]
    for size_ in (1, 3, len(stream)):
        chunks = [stream[i : i + size_] for i in range(0, len(stream), size_)]
        assert list(parsed(chunks)) == expected


def test_an_output_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("before")

    def fail() -> None:
        with written(str(target)) as out:
            out.write(b"half")
            raise InvalidRequest("no more")

    with pytest.raises(InvalidRequest):
        fail()
    assert target.read_text() == "before"
    link = tmp_path / "link"
    link.symlink_to(target)
    with written(str(link)) as out:
        out.write(b"after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_an_output_may_be_a_device() -> None:
    with written("/dev/null") as out:
        out.write(b"gone")


def test_numbers_times_and_sizes_are_for_people() -> None:
    assert [rounded(x) for x in (0, 0.01234, 1.2345, 12.345, 123.45, 12345.6)] == [
        *("0", "0.0123", "1.234", "12.35", "123.5", "12,346"),
    ]
    assert [span(x) for x in (8, 200, 7500, 97_200)] == ["8s", "3m20s", "2h05m", "1d3h"]
    assert [ago(x) for x in (-1, 59, 61, 7200, 100_000)] == [
        *("0s ago", "59s ago", "1m ago", "2h ago", "1d ago"),
    ]
    assert [size(x) for x in (12, 1500, 2e6, 3e12)] == ["12 B", "1.5 kB", "2.0 MB", "3000.0 GB"]
    assert [shown(x) for x in (None, "", True, 1234, "x")] == ["-", "-", "yes", "1,234", "x"]
    assert clock_time(None) is None


def test_what_others_wrote_does_not_steer_a_terminal() -> None:
    assert shown("a\x1b[2Jb\tc\nd\u202e") == "a\\x1b[2Jb\\tc\nd\\u202e"


def test_the_help_is_there_at_once() -> None:
    took = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([PROGRAM, "--help"], check=True, capture_output=True)
        took.append(time.monotonic() - began)
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import batchgen.cli.main"],
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    for heavy in ("pydantic", "httpx", "sqlalchemy", "celery", "rich.progress"):
        assert f" {heavy}\n" not in loaded
    assert min(took) < 2.0
