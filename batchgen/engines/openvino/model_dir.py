"""What a model directory says about its model, and the content hash of what is in it."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.chat.tokenizer import eos_ids, read_json
from batchgen.domain.errors import LoadFailed

MODEL_XML = "openvino_model.xml"
VISION_XML = "openvino_language_model.xml"
"""A model that sees is exported in parts: this is the one that generates."""
_CHUNK_BYTES = 4 << 20
_HASHED = (
    "*.xml",
    "*.bin",
    "tokenizer.json",
    "*config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_HASH_FILE = "batchgen-hashes.json"
# What this process knows of files, by their seals: read or found noted, they are not read again.
_digests: dict[str, str] = {}


@dataclass(frozen=True)
class ModelFacts:
    """The limits of a model. `positions` None: the directory does not tell.

    `sees`: it takes images, each as at most `image_tokens` tokens (None: not told).
    """

    positions: int | None
    vocab_size: int
    eos_ids: tuple[int, ...]
    linear_attention: bool
    sees: bool = False
    image_tokens: int | None = None


def read_facts(model_dir: Path) -> ModelFacts:
    """Read config.json. Raises LoadFailed where the directory holds no OpenVINO model."""
    sees = (model_dir / VISION_XML).is_file()
    if not sees and not (model_dir / MODEL_XML).is_file():
        raise LoadFailed(
            f"{model_dir} holds no openvino_model.xml; export the model with "
            "`optimum-cli export openvino --model DIR --task text-generation-with-past OUT`"
        )
    config = read_json(model_dir / "config.json")
    image_tokens = _image_tokens(config, model_dir) if sees else None
    config = config.get("text_config", config)
    vocab_size, positions = config.get("vocab_size"), config.get("max_position_embeddings")
    if not isinstance(vocab_size, int):
        raise LoadFailed(f"{model_dir / 'config.json'} does not tell the vocab_size")
    return ModelFacts(
        positions=positions if isinstance(positions, int) else None,
        vocab_size=vocab_size,
        eos_ids=eos_ids(model_dir),
        linear_attention="linear_attention" in (config.get("layer_types") or ()),
        sees=sees,
        image_tokens=image_tokens,
    )


def _image_tokens(config: Mapping[str, Any], model_dir: Path) -> int | None:
    """What config.json says of every image, or what the largest prepared image comes to."""
    said = config.get("image_seq_length")
    if isinstance(said, int):
        return said
    prepared = read_json(model_dir / "preprocessor_config.json")
    pixels = prepared.get("max_pixels") or (prepared.get("size") or {}).get("longest_edge")
    side = (prepared.get("patch_size") or 0) * (prepared.get("merge_size") or 0)
    return -(-pixels // side**2) if isinstance(pixels, int) and side else None


def max_model_len(facts: ModelFacts, asked: int | None) -> int:
    """Prompt and answer together. Raises LoadFailed where more is asked than the model can do."""
    if asked is None:
        if facts.positions is None:
            raise LoadFailed(
                "config.json does not tell max_position_embeddings: give max_model_len"
            )
        return facts.positions
    if facts.positions is not None and asked > facts.positions:
        raise LoadFailed(
            f"max_model_len {asked} is over the model's max_position_embeddings {facts.positions}"
        )
    return asked


def content_files(model_dir: Path) -> list[Path]:
    """The files that make a model what it is: weights, tokenizer, configuration, template."""
    return sorted({path for pattern in _HASHED for path in model_dir.glob(pattern)})


def content_hash(model_dir: Path, cache_dir: Path | None) -> str:
    """The hash of weights, tokenizer and configuration: 32 hex digits.

    Files that look unchanged since the last time (size, time) are taken from a note in `cache_dir`.
    """
    note = None if cache_dir is None else cache_dir / _HASH_FILE
    known = _read_note(note)
    files = content_files(model_dir)
    hashes: dict[str, list[str]] = {}
    for path in files:
        stat = path.stat()
        seal = f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        its_seal, noted = known.get(path.name, ("", ""))
        if seal not in _digests:
            _digests[seal] = noted if its_seal == seal else _file_hash(path)
        hashes[path.name] = [seal, _digests[seal]]
    if note is not None and hashes != known:
        # Another host may write the same note: a broken one is read as none. Where it cannot be
        # written the next process reads the files again.
        with contextlib.suppress(OSError):
            note.write_text(json.dumps(hashes))
    whole = "".join(f"{name} {digest}\n" for name, (_, digest) in sorted(hashes.items()))
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()


def adapter_files(adapter: Path) -> list[Path]:
    """A LoRA adapter's file, and beside it the one that holds its scale, where that is there."""
    return [path for path in (adapter, adapter.with_name("adapter_config.json")) if path.is_file()]


def adapter_hash(adapter: Path) -> str:
    """The hash of an adapter and its scale: 32 hex digits."""
    whole = "".join(f"{_file_hash(path)}\n" for path in adapter_files(adapter))
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()


def vocabulary_hash(model_dir: Path) -> str:
    """The hash of which text each token id stands for: 16 hex digits."""
    definition = read_json(model_dir / "tokenizer.json")
    if not definition:
        raise LoadFailed(f"{model_dir} has no tokenizer.json")
    added = [(token["id"], token["content"]) for token in definition.get("added_tokens", ())]
    vocabulary: Any = definition["model"].get("vocab")
    if isinstance(vocabulary, Mapping):
        vocabulary = sorted(vocabulary.items())
    text = json.dumps([vocabulary, sorted(added)])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _read_note(note: Path | None) -> dict[str, list[str]]:
    try:
        known = {} if note is None else json.loads(note.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        name: entry
        for name, entry in known.items()
        if isinstance(entry, list) and list(map(type, entry)) == [str, str]
    }


def _file_hash(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
