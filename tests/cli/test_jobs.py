"""Jobs from the command line, on a real stack."""

import gzip
import json
import os
import signal
import subprocess

import pytest

from batchgen.cli.render import rounded
from tests.cli.conftest import Write
from tests.cli.shell import Shell
from tests.waiting import until


def records(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def submitted(stack: Shell, *arguments: object) -> str:
    done = stack("submit", *map(str, arguments))
    assert done.code == 0, done.err
    return done.out.strip()


def test_a_job_is_submitted_watched_and_fetched(stack: Shell, lines_file: Write) -> None:
    job_id = submitted(stack, lines_file("one.", "two.", "three."))
    watched = stack("watch", job_id)
    assert watched.code == 0
    assert "completed  3/3" in watched.err
    results = records(stack("results", job_id).out)
    assert [record["custom_id"] for record in results] == ["r0", "r1", "r2"]
    assert stack("errors", job_id).out == ""
    assert len(records(stack("timings", job_id).out)) == 3


def test_a_submission_waits_for_its_end_when_asked_to(stack: Shell, lines_file: Write) -> None:
    done = stack("submit", lines_file("one."), "--watch", "--json", "--meta", "for=me")
    assert done.code == 0
    assert done.json()["state"] == "completed"
    assert done.json()["metadata"] == {"for": "me"}


def test_failed_lines_are_exit_code_1_unless_they_are_allowed(
    stack: Shell, lines_file: Write
) -> None:
    job_id = submitted(stack, lines_file("good.", "bad."))
    assert stack("watch", job_id).code == 1
    assert stack("watch", job_id, "--allow-failures").code == 0
    (error,) = records(stack("errors", job_id).out)
    assert error["custom_id"] == "r1"


def test_an_input_with_faults_names_their_lines(stack: Shell, lines_file: Write) -> None:
    path = lines_file("one.", "two.")
    path.write_bytes(path.read_bytes() + b"not json\n")
    done = stack("submit", path, "--watch")
    assert done.code == 1
    assert "line 3: the line is not JSON" in done.err
    status = stack("status", done.out.strip())
    assert "invalid_json_line" in status.out


def test_plain_lines_become_requests_under_their_line_numbers(stack: Shell) -> None:
    lines = b'{"prompt": "one.", "max_tokens": 4}\n\n{"prompt": "two.", "custom_id": "mine"}\n'
    done = stack("submit", "-", "-m", "sim", "--watch", "--quiet", stdin=lines)
    assert done.code == 0, done.err
    found = records(stack("results", done.out.strip()).out)
    assert [record["custom_id"] for record in found] == ["line-1", "mine"]


@pytest.mark.parametrize("name", ["plain.jsonl.gz", "batch.jsonl.gz"])
def test_a_compressed_input_is_taken_in_either_form(
    stack: Shell, lines_file: Write, name: str
) -> None:
    lines = b'{"messages": [{"role": "user", "content": "hi."}]}\n'
    if name.startswith("batch"):
        lines = lines_file("hi.").read_bytes()
    path = lines_file(name=name)
    path.write_bytes(gzip.compress(lines))
    done = stack("submit", path, "-m", "sim", "--watch", "--json")
    assert done.json()["counts"]["completed"] == 1


def test_an_uploaded_file_is_submitted_again_by_its_id(stack: Shell, lines_file: Write) -> None:
    first = stack("submit", lines_file("one."), "--json").json()
    again = stack("submit", first["input_file_id"], "--watch", "--json").json()
    assert again["id"] != first["id"]
    assert again["state"] == "completed"


def test_a_job_is_paused_resumed_and_cancelled(stack: Shell, lines_file: Write) -> None:
    job_id = submitted(stack, lines_file(*["x."] * 200, model="slow"))
    assert stack("pause", job_id, "--json").json()["state"] == "paused"
    assert stack("list", "--state", "paused").out.count(job_id) == 1
    assert stack("resume", job_id).out == f"{job_id} queued\n"
    assert stack("cancel", job_id).code == 0
    watched = stack("watch", job_id, "--json")
    assert watched.code == 1
    names = [json.loads(line)["event"] for line in watched.out.splitlines()]
    assert {"pause", "resume", "cancel", "progress", "end"} <= set(names)
    again = stack("cancel", job_id)
    assert (again.code, again.err.count("\n")) in {(0, 0), (2, 1)}


def test_failed_lines_are_run_again(stack: Shell, lines_file: Write) -> None:
    job_id = submitted(stack, lines_file("good.", "once.", "fine."))
    stack("watch", job_id, "-q")
    failed = stack("status", job_id, "--json").json()["counts"]["failed"]
    assert failed == 1
    assert stack("retry", job_id).code == 0
    assert stack("watch", job_id, "-q").code == 0
    assert len(records(stack("results", job_id).out)) == 3


def test_metrics_and_manifest_say_that_nothing_was_computed(
    stack: Shell, lines_file: Write
) -> None:
    job_id = submitted(stack, lines_file("one.", "two."))
    stack("watch", job_id)
    shown = stack("metrics", job_id)
    assert "simulated" in shown.err
    assert "output_tok_s" in shown.out
    found = stack("metrics", job_id, "--json").json()
    assert found["n_completed"] == 2
    assert stack("manifest", job_id).json()["simulated"] is True


def test_results_of_a_running_job_are_those_so_far(stack: Shell, lines_file: Write) -> None:
    job_id = submitted(stack, lines_file(*["x."] * 400, model="slow"))
    until(lambda: stack("status", job_id, "--json").json()["counts"]["completed"] > 0)
    so_far = records(stack("results", job_id).out)
    assert 0 < len(so_far) < 400
    assert "no metrics" in stack("metrics", job_id).err
    assert stack("cancel", job_id).code == 0


def test_a_result_file_appears_whole_and_keeps_what_was_there_on_failure(
    stack: Shell, lines_file: Write
) -> None:
    source = lines_file("one.")
    job_id = submitted(stack, source)
    stack("watch", job_id)
    out = source.with_name("out.jsonl")
    out.write_text("kept")
    assert stack("results", "batch_none", "-o", out).code == 2
    assert out.read_text() == "kept"
    done = stack("results", job_id, "-o", out, "--json")
    assert done.json()["bytes"] == out.stat().st_size
    assert {path.name for path in out.parent.iterdir()} == {"in.jsonl", "out.jsonl"}


def test_a_reader_that_leaves_early_is_no_error(stack: Shell, lines_file: Write) -> None:
    job_id = submitted(stack, lines_file(*["x."] * 2000))
    stack("watch", job_id)
    reading = stack.start("results", job_id, stdout=-1, stderr=-1)
    assert reading.stdout is not None
    reading.stdout.read(10)
    reading.stdout.close()
    assert reading.wait(timeout=30) == 0
    assert reading.stderr is not None
    assert reading.stderr.read() == b""
    reading.stderr.close()


@pytest.mark.parametrize("job_id", ["batch_none", "../keys", "a b?c=d"])
def test_a_job_that_is_not_there_is_one_line(stack: Shell, job_id: str) -> None:
    done = stack("status", job_id)
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_a_model_that_is_not_there_is_named(stack: Shell, lines_file: Write) -> None:
    done = stack("submit", lines_file("one."), "-m", "gone")
    assert done.code == 2
    assert "gone" in done.err


def test_an_unknown_engine_setting_names_the_nearest(stack: Shell, lines_file: Write) -> None:
    done = stack("submit", lines_file("one."), "-m", "sim", "--set", "max_num_seq=4")
    assert done.code == 2
    assert "max_num_seqs" in done.err


def test_a_job_without_metrics_yet_is_no_failure(stack: Shell, lines_file: Write) -> None:
    job_id = submitted(stack, lines_file(*["x."] * 200, model="slow"))
    shown = stack("metrics", job_id)
    assert (shown.code, shown.out) == (0, "")
    assert "no metrics" in shown.err
    assert stack("metrics", job_id, "--json").json() == {}
    assert stack("cancel", job_id).code == 0


def test_the_end_of_a_watch_has_the_rate_that_the_metrics_have(
    stack: Shell, lines_file: Write
) -> None:
    job_id = submitted(stack, lines_file("one.", "two."))
    watched = stack("watch", job_id)
    values = stack("metrics", job_id, "--json").json()["values"]
    (last,) = (line for line in watched.err.splitlines() if line.startswith("completed"))
    assert f"{rounded(values['req_s']['value'])} lines/s" in last
    assert f"{rounded(values['output_tok_s']['value'])} tok/s" in last


def test_a_job_that_no_worker_can_serve_says_so_everywhere(stack: Shell, lines_file: Write) -> None:
    bound = ("--engine", "simulated", "--device", "GPU.7")
    assert stack("model", "add", "bound", *bound).code == 0
    done = stack("submit", lines_file("one.", model="bound"), "-m", "bound")
    job_id = done.out.strip()
    expected = "warning: no worker of the pool 'default' serves GPU.7"
    assert expected in done.err
    assert expected in stack("status", job_id).err
    watching = stack.start("watch", job_id, stderr=subprocess.PIPE)
    assert watching.stderr is not None
    with watching.stderr:
        while expected.encode() not in watching.stderr.readline():
            pass
        assert stack("cancel", job_id).code == 0
        watching.stderr.read()
    assert watching.wait(timeout=30) == 1


def test_a_watch_says_when_the_server_goes_away_and_when_it_is_back(
    stack: Shell, lines_file: Write
) -> None:
    job_id = submitted(stack, lines_file(*["x."] * 400, model="slow"))
    watching = stack.start("watch", job_id, stderr=subprocess.PIPE)
    assert watching.stderr is not None
    state = json.loads((stack.data_dir / "run" / "stack.json").read_text())
    (api,) = (part["pid"] for part in state["parts"] if part["name"] == "api")
    with watching.stderr:
        for text in (b"running", b" is away: trying again", b" is back"):
            while text not in (line := watching.stderr.readline()):
                assert line, f"{text!r} was not said"
            if text == b"running":
                os.kill(api, signal.SIGKILL)
        assert stack("cancel", job_id).code == 0
        watching.stderr.read()
    assert watching.wait(timeout=30) == 1
