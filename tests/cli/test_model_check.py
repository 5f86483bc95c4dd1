"""`batchgen model check` on a real stack."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import batchgen.demo
from tests.cli.shell import Shell
from tests.waiting import until

MODEL = min((Path(batchgen.demo.__file__).parent / "models").glob("*-ov"))


def test_the_demo_model_is_loaded_and_tells_what_it_turned_out_to_be(stack: Shell) -> None:
    pytest.importorskip("openvino_genai")
    added = stack(
        *("model", "add", "orders", "--path", MODEL, "--num-kv-blocks", "64"),
        *("--max-num-seqs", "8", "--kv-cache-precision", "u8"),
    )
    assert added.code == 0, added.err
    done = stack("model", "check", "orders", "--max-tokens", "4", "--json", timeout_s=120)
    assert done.code == 0, done.err
    check = done.json()
    applied = check["report"]["applied"]
    assert check["state"] == "passed"
    assert applied["config"]["scheduler_config"]["num_kv_blocks"] == 64
    assert applied["config"]["scheduler_config"]["max_num_seqs"] == 8
    assert applied["config"]["runtime_config"]["KV_CACHE_PRECISION"] == "u8"
    assert (applied["kv_blocks"], applied["kv_block_tokens"]) == (64, 32)
    assert applied["kv_bytes_per_token"] > 0
    assert check["report"]["stats"]["rss_bytes"] > 0
    assert check["report"]["generation"]["output_tokens"] >= 1
    # 64 blocks of 32 tokens hold less than a request of the model's 4,096.
    assert "raise num_kv_blocks to 128" in check["warnings"][0]


def test_a_person_sees_what_was_applied_as_names_and_values(stack: Shell) -> None:
    done = stack("model", "check", "sim", "--prompt", "say it", "--wait", "60")
    assert done.code == 0, done.err
    shown = dict(line.split("\t", 1) for line in done.out.splitlines())
    assert shown["engine"].startswith("simulated")
    assert shown["finish reason"] in {"stop", "length"}
    assert "text" in shown
    assert "load_s" in shown


def test_a_model_that_dies_of_its_first_request_is_told_in_one_line(stack: Shell) -> None:
    settings = '[{"contains": "say it", "action": "raise", "message": "scripted"}]'
    added = stack("model", "add", "dying", "--engine", "simulated", "--set", f"rules={settings}")
    assert added.code == 0, added.err
    done = stack("model", "check", "dying", "--prompt", "say it")
    assert done.code == 1
    assert "dying failed its check on" in done.err.splitlines()[-1]
    assert done.out == ""
    again = stack("model", "check", "dying", "--prompt", "say it", "--json")
    assert (again.code, again.json()["state"]) == (1, "failed")


def test_a_check_on_a_device_that_nobody_serves_ends_with_the_reason(stack: Shell) -> None:
    done = stack("model", "check", "sim", "--device", "GPU.7", "--wait", "1")
    assert done.code == 3
    assert "serves device 'GPU.7'; they serve: CPU" in done.err
    assert stack("model", "check", "nobody").code == 2


def test_a_worker_that_is_killed_in_a_check_is_started_again_and_does_it(stack: Shell) -> None:
    added = stack("model", "add", "slow-load", "--engine", "simulated", "--set", "load_s=3.0")
    assert added.code == 0, added.err
    check = stack.start("model", "check", "slow-load", "--json", stdout=subprocess.PIPE)
    until(lambda: stack("device", "list", "--json").json()[0]["state"] == "checking")
    (lock,) = (stack.data_dir / "run").glob("device-*.lock")
    os.kill(int(lock.read_text()), signal.SIGKILL)
    out, _ = check.communicate(timeout=120)
    assert check.returncode == 0
    assert json.loads(out)["state"] == "passed"
