"""The shipped demo models and example orders are intact and belong together."""

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from tokenizers import Tokenizer

from batchgen.demo.orders import INSTRUCTION, batch_line, examples, held_out

REPOSITORY = Path(__file__).parents[3]
MODELS = REPOSITORY / "batchgen" / "demo" / "models"
EXAMPLES = REPOSITORY / "examples"
CHECKPOINTS = ("orders-qwen3-2m", "orders-qwen3-1m")
DIRECTORIES = tuple(name + ending for name in CHECKPOINTS for ending in ("", "-ov"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODELS / CHECKPOINTS[0] / "tokenizer.json"))


def test_every_model_file_has_the_checksum_it_was_shipped_with() -> None:
    sums = (MODELS / "SHA256SUMS").read_text().splitlines()
    listed = {line.split("  ")[1]: line.split("  ")[0] for line in sums}
    present = {
        path.relative_to(MODELS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in MODELS.glob("*/*")
    }
    assert present == listed


def test_the_models_stay_small() -> None:
    assert sum(path.stat().st_size for path in MODELS.rglob("*") if path.is_file()) < 20e6


@pytest.mark.parametrize("name", DIRECTORIES)
def test_all_models_share_tokenizer_and_template(name: str) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (MODELS / name / file).read_bytes() == (MODELS / DIRECTORIES[0] / file).read_bytes()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_safetensors_hold_the_fp16_weights_that_the_config_describes(name: str) -> None:
    config = _json(MODELS / name / "config.json")
    header = _safetensors_header(MODELS / name / "model.safetensors")
    assert {tensor["dtype"] for tensor in header.values()} == {"F16"}
    assert header["model.embed_tokens.weight"]["shape"] == [2_048, config["hidden_size"]]
    layers = {int(m[1]) for key in header if (m := re.match(r"model\.layers\.(\d+)\.", key))}
    assert layers == set(range(config["num_hidden_layers"]))
    assert "lm_head.weight" not in header  # tied to the embedding


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_ir_is_int8_and_names_no_path_of_the_machine_that_made_it(name: str) -> None:
    directory = MODELS / f"{name}-ov"
    text = (directory / "openvino_model.xml").read_text()
    assert 'element_type="u8"' in text or 'element_type="i8"' in text
    for path in directory.glob("*.xml"):
        assert not re.search(r'value="(/|[A-Z]:\\)', path.read_text())


def test_end_of_turn_and_end_of_text_stop_the_generation(tokenizer: Tokenizer) -> None:
    stops = _json(MODELS / CHECKPOINTS[0] / "generation_config.json")["eos_token_id"]
    assert [tokenizer.id_to_token(number) for number in stops] == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces\n\ttab",
        "Zürich 日本語 🙂 \u2028 \x00",
        '{"a":[1.5e-3,"\\n"]}',
        "Łódź",
    ],
)
def test_any_text_is_encoded_and_decoded_without_loss(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_word_of_an_order_is_one_token(tokenizer: Tokenizer) -> None:
    for example, _ in zip(examples(2, "training"), range(2_000), strict=False):
        text = INSTRUCTION + example.message + example.order.to_json()
        for word in set(re.findall(r"[^\W\d_]+", text)):
            assert len(tokenizer.encode(word).ids) == 1, word


def test_the_chat_template_renders_chatml(tokenizer: Tokenizer) -> None:
    template = _json(MODELS / CHECKPOINTS[0] / "tokenizer_config.json")["chat_template"]
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.encode(text).tokens.count("<|im_start|>") == 3


def test_the_example_files_are_the_first_500_held_out_orders() -> None:
    lines = _jsonl(EXAMPLES / "orders-500.jsonl")
    labels = _jsonl(EXAMPLES / "orders-500.labels.jsonl")
    chosen = held_out(500)
    ids = [line["custom_id"] for line in lines]
    assert len(set(ids)) == 500
    assert lines == [batch_line(e, i) for e, i in zip(chosen, ids, strict=True)]
    assert labels == [
        {"custom_id": i, "expected": e.order.to_dict()} for e, i in zip(chosen, ids, strict=True)
    ]


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _safetensors_header(path: Path) -> dict[str, Any]:
    """The table of tensors: 8 bytes of length, little-endian, then that many bytes of JSON."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header
