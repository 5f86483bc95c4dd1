"""A LoRA adapter for a whole engine: read, checked against the model, and given to the pipeline.

openvino-genai's continuous batching ignores an adapter in any mode but MODE_STATIC, and in every
mode skips tensors that fit nothing in the model. So the mode is always that one, and what would be
skipped is refused. A file in PEFT's layout holds no scale; adapter_config.json beside it does.
"""

import hashlib
import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino_genai as genai

from batchgen.chat.tokenizer import read_json
from batchgen.domain.errors import LoadFailed
from batchgen.engines.openvino.model_dir import adapter_hash
from batchgen.engines.spec import Json, LoraAdapter

_HEADER_BYTES_MAX = 100 << 20
_PAIR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.\w+)?\.weight")
_LINEAR = re.compile(
    r'name="__module\.(?P<module>[^"/]+)/[^"]*" type="MatMul".*?<port id="1"[^>]*>\s*'
    r"<dim>(?P<outputs>\d+)</dim>\s*<dim>(?P<inputs>\d+)</dim>\s*</port>",
    re.DOTALL,
)
_NAMED = 3


@dataclass(frozen=True)
class _Pair:
    """The matrices A (rank by inputs) and B (outputs by rank) of one layer."""

    rank: int
    changes: tuple[int, int]
    """The outputs and inputs of the layer that they were made for."""


@dataclass(frozen=True)
class CheckedLora:
    """An adapter that fits its model. `rank` is the largest of its modules'."""

    path: Path
    alpha: float
    modules: int
    rank: int

    def applied(self) -> dict[str, Json]:
        """What the engine tells of it."""
        return {
            "path": str(self.path),
            "alpha": self.alpha,
            "modules": self.modules,
            "rank": self.rank,
            "hash": _hash(self.path),
        }

    def config(self) -> Any:
        """openvino-genai's AdapterConfig."""
        config = genai.AdapterConfig(genai.AdapterConfig.Mode.MODE_STATIC)
        config.add(genai.Adapter(str(self.path)), self.alpha)
        return config


def check_lora(lora: LoraAdapter, model_dir: Path) -> CheckedLora:
    """Raises LoadFailed where any part of the adapter would have no effect."""
    path = Path(lora.path)
    if lora.content_hash not in (None, adapter_hash(path)):
        raise LoadFailed(
            f"{path} is another LoRA adapter here than was registered: copy the registered one, or "
            "register the model again"
        )
    pairs = _pairs(path, _header(path))
    linears = _linears(model_dir / "openvino_model.xml")
    strangers = sorted(
        module for module, pair in pairs.items() if linears.get(module) != pair.changes
    )
    if strangers:
        shown = ", ".join(strangers[:_NAMED]) + (", …" if len(strangers) > _NAMED else "")
        raise LoadFailed(
            f"the LoRA adapter {path} changes {len(strangers)} layers that the model does not have "
            f"in that size ({shown}): it was made for another model"
        )
    rank = max(pair.rank for pair in pairs.values())
    alpha = _alpha(path.with_name("adapter_config.json")) if lora.alpha is None else lora.alpha
    return CheckedLora(path, alpha, len(pairs), rank)


def _header(path: Path) -> dict[str, Any]:
    """The table of contents of a safetensors file: a 64-bit length, then so much JSON."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, _HEADER_BYTES_MAX)))
    except (OSError, ValueError, struct.error) as error:
        raise LoadFailed(
            f"the LoRA adapter {path} cannot be read as safetensors: {error}"
        ) from error
    if not isinstance(header, dict):
        raise LoadFailed(f"the LoRA adapter {path} cannot be read as safetensors")
    header.pop("__metadata__", None)
    return header


def _pairs(path: Path, header: dict[str, Any]) -> dict[str, _Pair]:
    halves: dict[str, dict[str, list[int]]] = {}
    for name, tensor in header.items():
        found = _PAIR.fullmatch(name)
        shape = tensor.get("shape", ())
        if found is None or len(shape) != 2:
            raise LoadFailed(
                f"the LoRA adapter {path} holds {name}, which is no matrix of an adapter "
                "(….lora_A.weight, ….lora_B.weight): openvino-genai would leave it out"
            )
        halves.setdefault(found["module"], {})[found["half"]] = shape
    if not halves:
        raise LoadFailed(f"the LoRA adapter {path} is empty")
    pairs = {}
    for module, both in halves.items():
        if set(both) != {"A", "B"} or both["A"][0] != both["B"][1]:
            raise LoadFailed(
                f"the LoRA adapter {path} has no matching lora_A and lora_B of {module}"
            )
        pairs[module] = _Pair(both["A"][0], (both["B"][0], both["A"][1]))
    return pairs


def _linears(model_xml: Path) -> dict[str, tuple[int, int]]:
    """The model's linear layers: their outputs and inputs."""
    text = model_xml.read_text(encoding="utf-8")
    return {
        found["module"]: (int(found["outputs"]), int(found["inputs"]))
        for found in _LINEAR.finditer(text)
    }


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _alpha(config: Path) -> float:
    """The scale that PEFT applies: lora_alpha over the rank, or over its root (rsLoRA)."""
    said = read_json(config)
    if said.get("use_dora") or said.get("modules_to_save"):
        raise LoadFailed(
            f"{config}: DoRA and whole saved modules are not LoRA: they would be left out"
        )
    alpha, rank = said.get("lora_alpha"), said.get("r")
    if not isinstance(alpha, int | float) or not isinstance(rank, int) or rank < 1:
        return 1.0
    return alpha / (math.sqrt(rank) if said.get("use_rslora") else rank)
