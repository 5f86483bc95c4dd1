"""The hash of a model's files: of what they hold, and read once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.engines.openvino.model_dir import content_hash

FILES = {"openvino_model.xml": "<net/>", "openvino_model.bin": "weights", "config.json": "{}"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return directory


def test_equal_files_have_an_equal_hash_wherever_they_lie(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, text in FILES.items():
        (copy / name).write_text(text)
    (copy / "README.md").write_text("not of the model")
    assert content_hash(copy, None) == content_hash(model, None)


@pytest.mark.parametrize("name", [*FILES, "tokenizer.json", "chat_template.jinja"])
def test_every_file_of_the_model_counts(model: Path, name: str) -> None:
    before = content_hash(model, None)
    (model / name).write_text("another")
    assert content_hash(model, None) != before


def test_a_noted_hash_spares_the_reading(model: Path, tmp_path: Path) -> None:
    found = content_hash(model, tmp_path)
    (note,) = tmp_path.glob("*.json")
    noted = json.loads(note.read_text())
    noted["openvino_model.bin"][1] = "0" * 32
    note.write_text(json.dumps(noted))
    script = (
        "import sys; from pathlib import Path; from batchgen.engines.openvino.model_dir import "
        "content_hash; print(content_hash(Path(sys.argv[1]), Path(sys.argv[2])),"
        "content_hash(Path(sys.argv[1]), None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, model, tmp_path], capture_output=True, text=True, check=True
    )
    with_note, after_it = done.stdout.split()
    assert with_note == after_it != found


def test_a_file_of_another_time_is_read_again(model: Path, tmp_path: Path) -> None:
    found = content_hash(model, tmp_path)
    (model / "openvino_model.bin").write_text("WEIGHTS")
    os.utime(model / "openvino_model.bin", ns=(1, 1))
    assert content_hash(model, tmp_path) != found


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"config.json": 3}', '{"config.json": []}'])
def test_a_broken_note_is_none(model: Path, tmp_path: Path, broken: str) -> None:
    found = content_hash(model, tmp_path)
    (note,) = tmp_path.glob("*.json")
    note.write_text(broken)
    assert content_hash(model, tmp_path) == found
