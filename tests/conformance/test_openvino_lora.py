"""A LoRA adapter as part of an engine: it has its whole effect, or the load fails."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from batchgen.demo.orders import held_out
from batchgen.domain.errors import LoadFailed
from batchgen.domain.requests import ChatPrompt
from batchgen.engines.spec import DraftModel, LoraAdapter
from tests.conformance.conftest import MODEL, Loaded

TARGET = max(MODEL.parent.glob("*-ov"))
PREFIX = "base_model.model.model.layers"
RANK = 4
Shapes = dict[str, tuple[int, int]]
SHAPES: Shapes = {"self_attn.q_proj": (256, 256), "mlp.down_proj": (512, 256)}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    header, bodies, at = {}, [], 0
    for name, tensor in tensors.items():
        body = tensor.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(body)],
        }
        at += len(body)
        bodies.append(body)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(bodies))
    return path


def adapter(path: Path, shapes: Shapes = SHAPES, *, strength: float = 0.3) -> Path:
    """Random, for the first layer and the last."""
    rng = np.random.default_rng(0)
    tensors = {}
    for layer in (0, 2):
        for name, (inputs, outputs) in shapes.items():
            module = f"{PREFIX}.{layer}.{name}"
            tensors[f"{module}.lora_A.weight"] = rng.normal(0, strength, (RANK, inputs))
            tensors[f"{module}.lora_B.weight"] = rng.normal(0, strength, (outputs, RANK))
    return write_safetensors(path, tensors)


def answer(loaded: Loaded) -> tuple[int, ...]:
    (order,) = held_out(1)
    ids = loaded.encoder.encode(ChatPrompt(tuple(order.messages())))
    return loaded.one(ids, max_tokens=40).choices[0].token_ids


def test_an_adapter_changes_what_is_generated_by_its_scale(openvino, tmp_path):
    path = adapter(tmp_path / "adapter.safetensors")
    plain = answer(openvino(path=str(TARGET)))
    loaded = openvino(path=str(TARGET), lora=LoraAdapter(path=str(path)))
    assert answer(loaded) != plain
    told = loaded.applied.config["lora"]
    assert (told["alpha"], told["modules"], told["rank"]) == (1.0, 4, RANK)
    assert len(told["hash"]) == 32
    without = openvino(path=str(TARGET), lora=LoraAdapter(path=str(path), alpha=0.0))
    assert answer(without) == plain


def test_its_scale_is_what_peft_would_apply(openvino, tmp_path):
    path = adapter(tmp_path / "adapter_model.safetensors")
    said = tmp_path / "adapter_config.json"
    said.write_text(json.dumps({"lora_alpha": 8, "r": RANK}))
    assert openvino(path=str(TARGET), lora=LoraAdapter(path=str(path))).applied.config["lora"][
        "alpha"
    ] == pytest.approx(2.0)
    said.write_text(json.dumps({"lora_alpha": 8, "r": RANK, "use_rslora": True}))
    assert openvino(path=str(TARGET), lora=LoraAdapter(path=str(path))).applied.config["lora"][
        "alpha"
    ] == pytest.approx(4.0)
    said.write_text(json.dumps({"lora_alpha": 8, "r": RANK, "use_dora": True}))
    with pytest.raises(LoadFailed, match="DoRA"):
        openvino(path=str(TARGET), lora=LoraAdapter(path=str(path)))


def unmatched(path: Path) -> Path:
    return write_safetensors(path, {f"{PREFIX}.0.self_attn.q_proj.lora_A.weight": np.ones((4, 8))})


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda p: adapter(p, {"self_attn.qkv_proj": (256, 256)}), "made for another model"),
        (lambda p: adapter(p, {"self_attn.q_proj": (128, 256)}), "made for another model"),
        (lambda p: adapter(p, {"self_attn.q_proj": (256, 128)}), "made for another model"),
        (unmatched, "no matching lora_A and lora_B"),
        (lambda p: write_safetensors(p, {}), "is empty"),
        (lambda p: write_safetensors(p, {"lm_head.weight": np.ones((4, 4))}), "leave it out"),
        (lambda p: p.write_bytes(b"\x80\x04pickle") and p, "cannot be read as safetensors"),
        (lambda p: p, "cannot be read as safetensors"),
    ],
)
def test_an_adapter_that_would_be_ignored_fails_the_load(openvino, tmp_path, write, why):
    path = write(tmp_path / "adapter.safetensors")
    with pytest.raises(LoadFailed, match=why):
        openvino(path=str(TARGET), lora=LoraAdapter(path=str(path)))


def test_a_draft_model_leaves_the_adapted_answers_as_they_are(openvino, tmp_path):
    """The adapter is the model's; the draft proposes as it is, and is verified."""
    lora = LoraAdapter(path=str(adapter(tmp_path / "adapter.safetensors")))
    draft = DraftModel(path=str(MODEL), num_assistant_tokens=3)
    adapted = answer(openvino(path=str(TARGET), lora=lora))
    assert adapted != answer(openvino(path=str(TARGET)))
    assert answer(openvino(path=str(TARGET), lora=lora, draft=draft)) == adapted
