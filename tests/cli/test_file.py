"""Looking at a file without a server."""

import gzip

import pytest

from tests.cli.conftest import Write
from tests.cli.shell import Shell


@pytest.mark.parametrize("packed", [False, True])
def test_a_good_file_is_valid_and_counted(shell: Shell, lines_file: Write, packed: bool) -> None:
    path = lines_file("one.", "two.")
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    done = shell("file", "validate", path)
    assert (done.code, done.out) == (0, "valid: 2 requests in 2 lines, all for model sim\n")
    assert shell("file", "validate", path, "--json").json()["faults"] == []
    counted = shell("file", "stats", path, "--json").json()
    assert counted["n_requests"] == 2
    assert counted["models"] == {"sim": 2}
    assert "prompt characters" in shell("file", "stats", path).out


def test_faults_are_shown_with_their_lines(shell: Shell, lines_file: Write) -> None:
    path = lines_file("one.", "two.")
    path.write_bytes(path.read_bytes() + b"\nnot json\n" + path.read_bytes())
    done = shell("file", "validate", path)
    assert done.code == 1
    rows = [line.split("\t")[:2] for line in done.out.splitlines()[1:]]
    assert rows[0] == ["4", "invalid_json_line"]


def test_requests_that_would_fail_alone_are_shown_too(shell: Shell, lines_file: Write) -> None:
    path = lines_file("one.")
    path.write_text(path.read_text().replace('"max_tokens": 8', '"max_tokens": -8'))
    done = shell("file", "validate", path, "--json")
    assert done.code == 1
    assert done.json()["valid"] is True
    assert done.json()["n_failing"] == 1


def test_plain_lines_are_judged_as_they_will_be_sent(shell: Shell, lines_file: Write) -> None:
    path = lines_file()
    path.write_text('{"prompt": "hi"}\n')
    assert shell("file", "validate", path, "-m", "sim").code == 0
    assert shell("file", "stats", path, "--json").json()["endpoints"] == {"/v1/completions": 1}


MIXED = '{"prompt": "hi"}\n\n{"messages": [{"role": "user", "content": "hi"}]}\n'


def test_plain_lines_of_two_kinds_are_refused_by_their_line(
    shell: Shell, lines_file: Write
) -> None:
    path = lines_file()
    path.write_text(MIXED)
    done = shell("file", "validate", path, "-m", "sim")
    assert done.code != 0
    assert "line 3 has 'messages'" in done.err
    assert "/v1/completions, as line 1 has 'prompt'" in done.err
    asked = shell("file", "validate", path, "-m", "sim", "--endpoint", "/v1/chat/completions")
    assert "line 1 has 'prompt'" in asked.err
    assert "as it was asked for" in asked.err
    counted = shell("file", "stats", path, "--json").json()
    assert counted["endpoints"] == {"/v1/completions": 1, "/v1/chat/completions": 1}


def test_the_line_that_decided_the_endpoint_is_named(shell: Shell, lines_file: Write) -> None:
    path = lines_file("one.", "two.", "three.")
    odd = path.read_text().replace("/v1/chat/completions", "/v1/completions", 1)
    path.write_text("\n" + odd)
    done = shell("file", "validate", path)
    assert done.code == 1
    assert "the endpoint is /v1/completions, as line 2 says" in done.err
    report = shell("file", "validate", path, "--json").json()
    assert (report["endpoint_line"], len(report["faults"])) == (2, 2)
    named = shell("file", "validate", path, "--endpoint", "/v1/chat/completions", "--json").json()
    assert (named["endpoint_line"], len(named["faults"])) == (None, 1)
