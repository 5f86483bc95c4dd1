"""The program, a stack of its own for all of these tests, and inputs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.house import chat_line, jsonl

Write = Callable[..., Path]

RULES = [
    {"contains": "bad", "action": "fail", "message": "as scripted", "times": None},
    {"contains": "once", "action": "fail", "message": "not yet", "times": 1},
]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell on a machine where nothing is up."""
    return Shell(tmp_path / "data")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell beside a real stack with the simulated models `sim` and `slow`."""
    home = tmp_path_factory.mktemp("stack")
    shell = Shell(home / "data")
    started = shell("up", "--detach", "--port", "0", "--device", "CPU", timeout_s=120)
    assert started.code == 0, started.err
    try:
        for name, settings in {"sim": {}, "slow": {"step_s": 0.05, "max_num_seqs": 2}}.items():
            spec = home / f"{name}.json"
            spec.write_text(json.dumps({"engine": "simulated", "rules": RULES, **settings}))
            added = shell("model", "add", name, "--spec", spec)
            assert added.code == 0, added.err
        yield shell
    finally:
        assert shell("down").code == 0


@pytest.fixture
def lines_file(tmp_path: Path) -> Write:
    """Writes an input file of chat lines, one for each text."""

    def write(*texts: str, name: str = "in.jsonl", model: str = "sim") -> Path:
        path = tmp_path / name
        path.write_bytes(jsonl(chat_line(f"r{i}", t, model=model) for i, t in enumerate(texts)))
        return path

    return write
