"""What holds for every command: help, one-line errors, exit codes."""

import re
from collections.abc import Iterator

import pytest
import typer

from batchgen.cli.main import app, execute
from tests.cli.shell import Shell


def commands() -> Iterator[tuple[str, ...]]:
    """Every command of the tree by its words."""
    root = typer.main.get_command(app)
    waiting = [((), root)]
    while waiting:
        words, command = waiting.pop()
        below = getattr(command, "commands", {})
        waiting += [((*words, name), child) for name, child in below.items()]
        if not below:
            yield words


COMMANDS = sorted(commands())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does_and_what_each_option_means(
    words: tuple[str, ...],
) -> None:
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert command.help
    for parameter in command.params:
        assert parameter.help or parameter.hidden, f"{parameter.name} has no help"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_on_80_columns_has_every_option_whole(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert execute([*words, "--help"]) == 0
    helped = capsys.readouterr().out
    # Texts are wrapped; a name with its values stays in one piece, whatever its length.
    assert all(len(line) <= 80 for line in helped.splitlines() if not line.startswith("  -"))
    said = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", helped))
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            assert {*parameter.opts, *parameter.secondary_opts} <= said


NO_JSON = {"worker control", "worker beat", "worker device", "db upgrade"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_that_tells_something_has_json(words: tuple[str, ...]) -> None:
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    has = any("--json" in parameter.opts for parameter in command.params)
    assert has is (" ".join(words) not in NO_JSON)


def test_the_program_names_its_commands_and_its_version(shell: Shell) -> None:
    helped = shell("--help")
    assert helped.code == 0
    assert "submit" in helped.out
    assert shell("--version").out.strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["statsu"], "Did you mean 'status'?"),
        (["submit"], "Missing argument 'INPUT'"),
        (["submit", "x", "--modle", "y"], "--model"),
        (["list", "-n", "0"], "-n"),
        (["key", "create", "k", "--scope", "root"], "'root' is not one of"),
        (["file", "validate", "/nowhere.jsonl"], "does not exist"),
        (["submit", "/nowhere.jsonl"], "no such input file: /nowhere.jsonl"),
        (["submit", "/"], "is a directory"),
        (["list", "--url", "here"], "http://host:port"),
        (["run", "x", "-m", "y", "--json"], "give a file for the results with -o"),
        (["up", "--json"], "--json goes with --detach"),
        (["demo", "--engine", "simulated"], "it computes no model"),
        (["model", "add", "m", "--set", "x"], "key=value"),
        (["worker", "device", "--device", "GPUU"], "no device 'GPUU' on this machine: it has CPU"),
        (["worker", "device", "--device", "HETERO:FOO,CPU"], "no device 'FOO' on this machine"),
        (["up", "-d", "--device", "cpu"], "no device 'cpu' on this machine: it has CPU"),
        (["submit", "x", "--set", "foo=1"], "name that with --model"),
        (["run", "/nowhere.jsonl", "-m", "x"], "no such input file: /nowhere.jsonl"),
        (["run", "/dev/null", "-m", "./nosuch"], "model directory ./nosuch does not exist"),
        (["list", "--data-dir", ""], "an empty name is no directory"),
        (["up", "--data-dir", ""], "an empty name is no directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    shell: Shell, arguments: list[str], said: str
) -> None:
    done = shell(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert said in done.err
    assert done.err.startswith("batchgen: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["status", "batch_x"], ["model", "list"], ["device", "list"], ["watch", "batch_x"]],
)
def test_a_server_that_is_not_there_is_exit_code_3_with_the_mend(
    shell: Shell, arguments: list[str]
) -> None:
    done = shell.with_(BATCHGEN_API_URL="http://127.0.0.1:9")(*arguments)
    assert done.code == 3
    assert "cannot reach the batchgen API at http://127.0.0.1:9" in done.err
    assert "`batchgen up`" in done.err
    assert done.err.count("\n") == 1


def test_a_broken_environment_names_its_variable(shell: Shell) -> None:
    done = shell.with_(BATCHGEN_PORT="many")("list")
    assert done.code == 2
    assert "BATCHGEN_PORT=many" in done.err


def test_an_empty_data_directory_is_not_the_working_directory(shell: Shell) -> None:
    for words in (["list"], ["up", "-d"], ["doctor"]):
        done = shell.with_(BATCHGEN_DATA_DIR="")(*words)
        assert done.code == 2
        assert "BATCHGEN_DATA_DIR=: names no directory" in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("BATCHGEN_PROT", "did you mean BATCHGEN_PORT?"),
        ("BATCHGEN_LEASES", "did you mean BATCHGEN_LEASE_S?"),
        ("BATCHGEN_BANANAS", "unset it"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_known_one(
    shell: Shell, variable: str, said: str
) -> None:
    done = shell.with_(**{variable: "8"})("up", "-d")
    assert done.code == 2
    assert f"{variable} is no setting of batchgen: {said}" in done.err


def test_what_the_compose_file_reads_is_no_misspelt_setting(shell: Shell) -> None:
    mine = shell.with_(BATCHGEN_POSTGRES_PASSWORD="x", BATCHGEN_PUBLISH="8000")
    assert mine("down").code == 0


def test_a_worker_without_a_service_says_how_to_get_one(shell: Shell) -> None:
    done = shell("worker", "beat")
    assert done.code == 3
    assert "BATCHGEN_DATABASE_URL" in done.err


def test_down_where_nothing_is_up_is_no_error(shell: Shell) -> None:
    assert shell("down").out == "nothing was up\n"
    assert shell("down", "--json").json() == {"stopped": False}


def test_the_doctor_gives_its_findings_as_json(shell: Shell) -> None:
    found = {check["name"]: check for check in shell("doctor", "--json").json()}
    assert found["python"]["ok"] is True
    assert found["stack"]["ok"] is None
