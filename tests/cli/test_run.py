"""`run`: from an input file to an output file, and what becomes of it at Ctrl-C."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import Write
from tests.cli.shell import Shell
from tests.waiting import until

DEMO_MODEL = Path(str(files("batchgen.demo") / "models" / "orders-qwen3-2m-ov"))
needs_openvino = pytest.mark.skipif(
    find_spec("openvino_genai") is None, reason="the openvino extra is not installed"
)


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def test_results_and_errors_go_to_their_files(stack: Shell, lines_file: Write) -> None:
    source = lines_file("one.", "bad.", "three.")
    out = source.with_name("out.jsonl")
    done = stack("run", source, "-m", "sim", "-o", out, "--json")
    assert done.code == 1
    assert done.json()["counts"]["failed"] == 1
    assert ids(out) == ["r0", "r2"]
    assert ids(source.with_name("out.errors.jsonl")) == ["r1"]


def test_an_error_file_of_an_earlier_run_is_not_taken_for_this_ones(
    stack: Shell, lines_file: Write
) -> None:
    source = lines_file("one.")
    stale = source.with_name("out.errors.jsonl")
    stale.write_text("stale\n")
    assert stack("run", source, "-m", "sim", "-o", source.with_name("out.jsonl")).code == 0
    assert stale.read_text() == ""


def test_standard_input_to_standard_output_with_failures_allowed(stack: Shell) -> None:
    lines = b'{"prompt": "one."}\n{"prompt": "bad."}\n'
    done = stack("run", "-", "-m", "sim", "--allow-failures", stdin=lines)
    assert done.code == 0
    assert [json.loads(line)["custom_id"] for line in done.out.splitlines()] == ["line-1"]
    assert "1 failed" in done.err


def test_the_input_is_never_overwritten(stack: Shell, lines_file: Write) -> None:
    source = lines_file("one.")
    before = source.read_bytes()
    for arguments in (("-o", source), ("-o", "x.jsonl", "--errors", source)):
        done = stack("run", source, "-m", "sim", *arguments)
        assert done.code == 2
        assert "is the input itself" in done.err
    assert source.read_bytes() == before


def test_a_model_that_is_not_there_comes_with_the_mend(stack: Shell, lines_file: Write) -> None:
    done = stack("run", lines_file("one."), "-m", "gone")
    assert done.code == 2
    assert "`batchgen model list`" in done.err


def test_an_input_with_faults_is_exit_code_1_and_writes_nothing(
    stack: Shell, lines_file: Write
) -> None:
    source = lines_file("one.")
    source.write_bytes(source.read_bytes() * 2)
    out = source.with_name("out.jsonl")
    done = stack("run", source, "-m", "sim", "-o", out)
    assert done.code == 1
    assert "line 2:" in done.err
    assert "nothing was run" in done.err
    assert not out.exists()


def test_an_interrupt_without_a_terminal_leaves_the_job_running(
    stack: Shell, lines_file: Write
) -> None:
    source = lines_file(*["x."] * 400, model="slow")
    running = stack.start("run", source, "-m", "slow", "-o", "x.jsonl", stderr=subprocess.PIPE)
    assert running.stderr is not None
    while b"running" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    said = running.stderr.read().decode()
    running.stderr.close()
    assert running.wait(timeout=30) == 130
    (command,) = (line.strip() for line in said.splitlines() if "batchgen cancel" in line)
    job_id = command.split()[2]
    assert stack("status", job_id, "--json").json()["state"] == "running"
    assert stack("cancel", job_id).code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_leaves_the_job_to_a_stack_that_is_not_its_own(
    stack: Shell, lines_file: Write, number: signal.Signals
) -> None:
    source = lines_file(*["x."] * 400, model="slow")
    running = stack.start("run", source, "-m", "slow", "-o", "x.jsonl", stderr=subprocess.PIPE)
    said = end_when_running(running, number)
    assert running.returncode == 128 + number
    assert f"batchgen: ended by {number.name}" in said
    (command,) = (line.strip() for line in said.splitlines() if "batchgen cancel" in line)
    job_id = command.split()[2]
    assert stack("status", job_id, "--json").json()["state"] == "running"
    assert stack("cancel", job_id).code == 0


def end_when_running(running: "subprocess.Popen[bytes]", number: signal.Signals) -> str:
    """Send the signal once the job runs; what is said afterwards."""
    assert running.stderr is not None
    with running.stderr:
        while b"running" not in running.stderr.readline():
            pass
        running.send_signal(number)
        said = running.stderr.read().decode()
    running.wait(timeout=60)
    return said


def simulated(shell: Shell, folder: Path) -> Shell:
    """The shell on a machine where a stack was once up, with the model `slow`."""
    mine = shell.with_(BATCHGEN_PORT="0")
    spec = folder / "slow.json"
    spec.write_text(json.dumps({"engine": "simulated", "step_s": 0.05, "max_num_seqs": 2}))
    assert mine("up", "-d", timeout_s=120).code == 0
    assert mine("model", "add", "slow", "--spec", spec).code == 0
    assert mine("down").code == 0
    return mine


def test_a_run_that_is_ended_stops_its_stack_and_says_how_the_job_goes_on(
    shell: Shell, lines_file: Write, tmp_path: Path
) -> None:
    mine = simulated(shell, tmp_path)
    source = lines_file(*["x."] * 400, model="slow")
    running = mine.start("run", source, "-m", "slow", "-o", "x.jsonl", stderr=subprocess.PIPE)
    said = end_when_running(running, signal.SIGTERM)
    assert running.returncode == 143
    assert "stopped the stack" in said
    assert "batchgen up --detach" in said
    assert mine("down").out == "nothing was up\n"
    (command,) = (line.strip() for line in said.splitlines() if "batchgen watch" in line)
    try:
        assert mine("up", "-d", timeout_s=120).code == 0
        job = mine("status", command.split()[2], "--json").json()
        assert job["state"] == "running"
    finally:
        assert mine("down").out == "stopped\n"


def test_the_stack_of_a_run_that_was_killed_is_taken_over_and_stopped_by_the_next(
    shell: Shell, lines_file: Write, tmp_path: Path
) -> None:
    mine = simulated(shell, tmp_path)
    source = lines_file(*["x."] * 40, model="slow")
    killed = mine.start("run", source, "-m", "slow", "-o", "x.jsonl", stderr=subprocess.PIPE)
    end_when_running(killed, signal.SIGKILL)
    try:
        (job,) = mine("list", "--json").json()
        assert job["state"] == "running"
        assert "left by a command that was killed" in mine("up", "-d").err
        out = tmp_path / "out.jsonl"
        done = mine("run", source, "-m", "slow", "-o", out, timeout_s=120)
        assert done.code == 0, done.err
        assert "taking over the stack of a command that was killed" in done.err
        assert f"batchgen watch {job['id']}" in done.err
        assert len(ids(out)) == 40
        assert "stopped the stack" in done.err
    finally:
        mine("down")


def test_failed_lines_of_a_run_that_wrote_no_error_file_can_still_be_seen(stack: Shell) -> None:
    done = stack("run", "-", "-m", "sim", stdin=b'{"prompt": "bad."}\n')
    (hint,) = (line for line in done.err.splitlines() if line.startswith("errors:"))
    command = hint.split("`")[1].split()
    assert len(stack(*command[1:]).out.splitlines()) == 1


@needs_openvino
def test_the_hint_of_a_run_whose_stack_is_stopped_works(shell: Shell) -> None:
    mine = shell.with_(BATCHGEN_PORT="0")
    lines = b'{"messages": [{"role": "user", "content": "hi"}], "logprobs": 9}\n'
    done = mine("run", "-", "-m", DEMO_MODEL, stdin=lines, timeout_s=150)
    assert done.code == 1, done.err
    (hint,) = (line for line in done.err.splitlines() if line.startswith("errors:"))
    try:
        for command in hint.split("`")[1::2]:
            shown = mine(*command.split()[1:], timeout_s=120)
            assert shown.code == 0, shown.err
        assert len(shown.out.splitlines()) == 1
    finally:
        assert mine("down").out == "stopped\n"


@contextlib.contextmanager
def at_a_terminal(stack: Shell, *arguments: str | Path) -> Iterator[tuple[int, int]]:
    """A command at a terminal of its own; gives its process id and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        program = [sys.executable, "-m", "batchgen.cli.main", *map(str, arguments)]
        os.execve(program[0], program, stack.variables())  # noqa: S606 (the terminal is its own)
    try:
        yield pid, terminal
    finally:
        os.close(terminal)


def read_until(terminal: int, text: str) -> str:
    seen = b""
    while text.encode() not in seen:
        seen += os.read(terminal, 4096)
    return seen.decode(errors="replace")


def end_of(pid: int, terminal: int) -> tuple[str, int]:
    """What is still said, and the exit code."""
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the terminal's other end is closed
        while chunk := os.read(terminal, 4096):
            seen += chunk
    return seen.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("answer", "state"), [(b"n\n", "cancelled"), (b"\n", "running"), (b"\x03", "running")]
)
def test_an_interrupt_at_a_terminal_asks_whether_the_job_goes_on(
    stack: Shell, lines_file: Write, answer: bytes, state: str
) -> None:
    source = lines_file(*["x."] * 400, model="slow")
    out = source.with_name("out.jsonl")
    with at_a_terminal(stack, "run", source, "-m", "slow", "-o", out) as (pid, terminal):
        read_until(terminal, "running")
        os.write(terminal, b"\x03")
        asked = read_until(terminal, "[Y/n]")
        os.write(terminal, answer)
        said, code = end_of(pid, terminal)
    assert code == 130
    job_id = asked[asked.index("batch_") :].split()[0]
    found = until(lambda: stack("status", job_id, "--json").json())
    assert found["state"] == state
    if state == "running":
        assert f"batchgen watch {job_id}" in said
        assert stack("cancel", job_id).code == 0
    else:
        assert out.exists()


@needs_openvino
def test_a_run_starts_a_stack_and_stops_it_again(shell: Shell, lines_file: Write) -> None:
    source = lines_file(name="in.jsonl")
    source.write_bytes(b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}\n')
    out = source.with_name("out.jsonl")
    mine = shell.with_(BATCHGEN_PORT="0")
    done = mine("run", source, "-m", DEMO_MODEL, "-o", out, timeout_s=150)
    assert done.code == 0, done.err
    assert "stopped the stack" in done.err
    (record,) = map(json.loads, out.read_bytes().splitlines())
    assert record["response"]["body"]["model"] == DEMO_MODEL.name
    assert mine("down").out == "nothing was up\n"


@needs_openvino
def test_the_demo_is_right_and_says_how_fast(stack: Shell, tmp_path: Path) -> None:
    done = stack("demo", "-n", "16", "-o", tmp_path / "demo", "--json", timeout_s=150)
    assert done.code == 0, done.err
    found = done.json()
    assert found["orders"] == 16
    assert found["exact"] >= 15
    assert found["metrics"]["values"]["output_tok_s"]["value"] > 0
    assert len(ids(tmp_path / "demo" / "answers.jsonl")) == 16
    table = stack("demo", "-n", "4", "-o", tmp_path / "demo", timeout_s=150)
    assert "exact match" in table.out
    assert "answers.jsonl" in table.out
