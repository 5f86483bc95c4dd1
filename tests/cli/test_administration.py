"""Models, devices, keys and the stack itself from the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.shell import Shell


def test_a_model_is_added_shown_listed_and_removed(stack: Shell) -> None:
    added = stack(
        "model", "add", "m1", "--engine", "simulated", "--set", "max_num_seqs=7", "--json"
    )
    assert added.json()["spec"]["max_num_seqs"] == 7
    assert "max_num_seqs" in stack("model", "show", "m1").out
    assert any(m["id"] == "m1" for m in stack("model", "list", "--json").json())
    assert stack("model", "remove", "m1").code == 0
    gone = stack("model", "show", "m1")
    assert (gone.code, gone.err.count("\n")) == (2, 1)


def test_the_same_settings_again_are_the_same_revision(stack: Shell) -> None:
    arguments = ("model", "add", "m2", "--engine", "simulated", "--json")
    first = stack(*arguments).json()
    assert stack(*arguments).json()["revision"] == first["revision"]
    other = stack(*arguments, "--set", "step_s=0.5").json()
    assert other["revision"] == first["revision"] + 1


def test_flags_go_over_the_spec_file_and_set_over_both(stack: Shell, tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('engine = "simulated"\nmax_model_len = 100\nload_s = 0.0\nstep_s = 0.1\n')
    done = stack(
        *("model", "add", "m3", "--spec", spec, "--max-model-len", "200"),
        *("--set", "step_s=0.2", "--json"),
    )
    made = done.json()["spec"]
    assert (made["max_model_len"], made["step_s"]) == (200, 0.2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "simulated", "--set", "max_num_seq=1"], "max_num_seqs"),
        (["--path", "/nowhere"], "no directory on the server"),
        (["--path", "/tmp"], "openvino_model.xml"),
        (["--max-model-len", "8", "--set", "max_model_len=9"], "by its flag and by --set"),
        (["--runtime-config", "{"], "--runtime-config is not JSON"),
        (["--path", "/tmp", "--prompt-lookup"], "--num-assistant-tokens"),
        (["--path", "/tmp", "--num-assistant-tokens", "4"], "--draft-model-path"),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_the_place(
    stack: Shell, arguments: list[str], said: str
) -> None:
    done = stack("model", "add", "never", *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_devices_are_listed(stack: Shell) -> None:
    (device,) = stack("device", "list", "--json").json()
    assert device["device"] == "CPU"
    assert "CPU" in stack("device", "list").out


def test_a_key_of_a_user_may_work_but_not_manage(stack: Shell) -> None:
    made = stack("key", "create", "colleague", "--expires-in", "1d", "--json").json()
    assert stack("list", "--key", made["secret"]).code == 0
    refused = stack("key", "list", "--key", made["secret"])
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert stack("key", "revoke", made["id"]).code == 0
    revoked = stack("list", "--key", made["secret"])
    assert revoked.code == 2
    assert "--key" in revoked.err


def test_a_key_is_shown_once_on_standard_output_alone(stack: Shell) -> None:
    made = stack("key", "create", "script")
    secret = made.out.strip()
    assert secret.startswith("bg_")
    assert secret not in made.err
    assert secret not in stack("key", "list", "--json").out


def test_the_key_of_this_machine_is_not_sent_to_another_server(stack: Shell) -> None:
    stored = json.loads((stack.data_dir / "credentials.json").read_text())
    other_name = stored["api_url"].replace("127.0.0.1", "localhost")
    assert stack("list", "--url", stored["api_url"]).code == 0
    assert stack("list", "--url", other_name).code == 2


def test_a_second_stack_on_the_same_directory_is_refused(stack: Shell) -> None:
    for arguments in (("up", "--detach"), ("up",)):
        done = stack(*arguments)
        assert done.code == 3
        assert f"`batchgen down --data-dir {stack.data_dir}`" in done.err


def test_the_schema_of_a_running_stack_is_current(stack: Shell) -> None:
    assert stack("db", "upgrade").out == "the database has the schema of this version\n"


def test_a_second_worker_for_a_device_is_refused(stack: Shell) -> None:
    done = stack("worker", "device", "--device", "CPU")
    assert done.code != 0
    assert "one device, one worker" in done.err


def test_the_doctor_finds_nothing_wrong_with_a_running_stack(stack: Shell) -> None:
    found = stack("doctor", "--json")
    assert found.code == 0, found.out
    assert all(check["ok"] is not False for check in found.json())


def test_an_outside_broker_that_is_away_is_said_and_work_goes_on_without_it(
    shell: Shell, tmp_path: Path
) -> None:
    mine = shell.with_(BATCHGEN_BROKER_URL="redis://:secret@127.0.0.1:9/0", BATCHGEN_PORT="0")
    started = mine("up", "--detach", "--json", timeout_s=120)
    try:
        assert started.code == 0, started.err
        assert "warning: the broker cannot be reached" in started.err
        assert "work goes on by polling" in started.err
        assert len(started.json()["warnings"]) >= 1
        assert "secret" not in started.out + started.err
        assert mine("model", "add", "sim", "--engine", "simulated").code == 0
        line = b'{"prompt": "one.", "max_tokens": 4}\n'
        done = mine("submit", "-", "-m", "sim", "--watch", stdin=line, timeout_s=120)
        assert done.code == 0, done.err
        for log in (shell.data_dir / "logs").glob("*.log"):
            assert "superuser" not in log.read_text(), log
    finally:
        assert mine("down").code == 0
