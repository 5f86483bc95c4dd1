"""Tiny models with random weights: what they say means nothing, that they run is what tests need.

    make test-models        # into tests/models

An embedding model (BERT's architecture) and one that sees images (LLaVA's: CLIP and Llama), both
with the demo models' tokenizer, exported to OpenVINO IR as a user would export a real one.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    BertConfig,
    BertModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

import batchgen.demo
from batchgen.demo.recipe.export import TOKENIZER_FILES, strip_paths
from batchgen.demo.recipe.tokenizer import END_OF_TEXT, END_OF_TURN

SOURCE: Final = Path(batchgen.demo.__file__).parent / "models" / "orders-qwen3-2m"
SEED: Final = 5
IMAGE: Final = "<image>"
IMAGE_SIZE: Final = 28
PATCH: Final = 14
IMAGE_TOKENS: Final = (IMAGE_SIZE // PATCH) ** 2
# A turn's text is a string, or parts of which images are marked by the model's own token.
TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def write_embedder(directory: Path) -> None:
    """Vectors of 32 numbers, texts of up to 128 tokens."""
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=len(_tokenizer()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder)
        BertModel(config, add_pooling_layer=False).save_pretrained(checkpoint)
        for name in TOKENIZER_FILES:
            shutil.copyfile(SOURCE / name, checkpoint / name)
        _export(checkpoint, directory, task="feature-extraction")


def write_seer(directory: Path) -> None:
    """Images of 28 by 28 as 4 tokens, text and images of up to 512 tokens."""
    torch.manual_seed(SEED)
    tokenizer = _tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=IMAGE_SIZE,
            patch_size=PATCH,
            projection_dim=32,
        ),
        text_config=LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    images = CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIZE}, crop_size=size)
    processor = LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        image_token=IMAGE,
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder)
        LlavaForConditionalGeneration(config).save_pretrained(checkpoint)
        processor.save_pretrained(checkpoint)
        _export(checkpoint, directory, task="image-text-to-text")
        # openvino-genai reads how images are prepared from a file of the older name.
        _write_json(directory / "preprocessor_config.json", images.to_dict())


def _tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(SOURCE / "tokenizer.json"),
        pad_token=END_OF_TEXT,
        eos_token=END_OF_TURN,
    )


def _export(checkpoint: Path, directory: Path, *, task: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"),
            *("--model", str(checkpoint), "--task", task, "--weight-format", "fp16"),
            str(directory),
        ],
        check=True,
    )
    for path in directory.glob("*.xml"):
        strip_paths(path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    write_embedder(asked.out / "random-embedder-ov")
    write_seer(asked.out / "random-seer-ov")


if __name__ == "__main__":
    main()
