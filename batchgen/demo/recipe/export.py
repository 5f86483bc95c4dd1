"""From trained weights to what is shipped: fp16 safetensors, and OpenVINO IR with int8 weights."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from batchgen.demo.recipe import tokenizer as demo_tokenizer
from batchgen.demo.recipe.model import Shape

TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def write_checkpoint(
    directory: Path, state: Mapping[str, Tensor], shape: Shape, tokenizer: Tokenizer
) -> None:
    """A Hugging Face model directory: weights in fp16, configuration and tokenizer."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    halves = {name: tensor.to(torch.float16).contiguous() for name, tensor in state.items()}
    save_file(halves, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    end_of_turn = demo_tokenizer.token_id(tokenizer, demo_tokenizer.END_OF_TURN)
    end_of_text = demo_tokenizer.token_id(tokenizer, demo_tokenizer.END_OF_TEXT)
    _write_json(directory / "config.json", shape.to_config(end_of_turn, end_of_text))
    _write_json(
        directory / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [end_of_turn, end_of_text],
            "pad_token_id": end_of_text,
        },
    )
    demo_tokenizer.save(tokenizer, directory)


def write_ir(checkpoint: Path, directory: Path) -> None:
    """Convert `checkpoint` with optimum-intel, weights in int8, and leave no trace of this machine.

    The tokenizer and configuration files are those of the checkpoint, not optimum's rewriting.
    """
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"),
            *("--model", str(checkpoint), "--task", "text-generation-with-past"),
            *("--weight-format", "int8", str(directory)),
        ],
        check=True,
    )
    kept = {"openvino_model", "openvino_tokenizer", "openvino_detokenizer"}
    for path in directory.iterdir():
        if path.stem not in kept:
            path.unlink()
    for name in ("config.json", "generation_config.json", *TOKENIZER_FILES):
        shutil.copyfile(checkpoint / name, directory / name)
    for path in directory.glob("*.xml"):
        strip_paths(path)


def strip_paths(path: Path) -> None:
    """Take absolute paths out of the IR's run-time information."""
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'value="(/|[A-Z]:\\)[^"]*"', 'value=""', text), encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
