"""What shows only in a model's files; said nothing of where they are not on this machine."""

import functools
from collections.abc import Iterator
from pathlib import Path

from batchgen.domain.errors import LoadFailed
from batchgen.engines.openvino.kv_size import block_tokens, draft_tokens, pool_tokens
from batchgen.engines.openvino.model_dir import (
    ModelFacts,
    max_model_len,
    read_facts,
    vocabulary_hash,
)
from batchgen.engines.spec import DraftModel, OpenVinoSpec


def file_faults(spec: OpenVinoSpec) -> Iterator[str]:
    """What the model's files, or its draft's, forbid."""
    facts = _facts(spec.path)
    if isinstance(facts, str):
        yield facts
        return
    if facts is None:
        return
    try:
        max_model_len(facts, spec.max_model_len)
    except LoadFailed as error:
        yield str(error)
    knobs = spec.scheduler_config
    for name, value in (
        ("num_linear_attention_blocks", knobs.num_linear_attention_blocks),
        ("cache_interval_multiplier", knobs.cache_interval_multiplier),
    ):
        if value and not facts.linear_attention:
            yield f"scheduler_config.{name}: the model has no linear attention: leave it out"
    tokens = pool_tokens(spec)
    needed = draft_tokens(spec) + 2
    if tokens is not None and tokens < needed:
        yield (
            f"the KV cache holds {tokens} tokens, no request at all (a prompt of one token needs "
            f"{needed} with its answer): raise num_kv_blocks or cache_size"
        )
    if spec.draft is not None:
        yield from _draft_faults(spec.path, spec.draft)
    yield from _sight_faults(spec, sees=facts.sees)


def _sight_faults(spec: OpenVinoSpec, *, sees: bool) -> Iterator[str]:
    if not sees:
        if spec.max_image_tokens is not None:
            yield "max_image_tokens has no effect: the model sees no images; leave it out"
        return
    for name, value in (
        ("draft", spec.draft),
        ("prompt_lookup", spec.prompt_lookup),
        ("lora", spec.lora),
    ):
        if value is not None:
            yield f"{name} is not supported for a model that sees images: leave it out"


def file_warnings(spec: OpenVinoSpec) -> Iterator[str]:
    """What the model's files make of settings that work."""
    facts, tokens = _facts(spec.path), pool_tokens(spec)
    if not isinstance(facts, ModelFacts) or tokens is None:
        return
    try:
        length = max_model_len(facts, spec.max_model_len)
    except LoadFailed:
        return
    needed = length + draft_tokens(spec)
    if tokens < needed:
        blocks = -(-needed // block_tokens(spec))
        yield (
            f"the KV cache holds {tokens} tokens, less than one request of max_model_len "
            f"({length}): longer ones end as error lines (kv_capacity); raise num_kv_blocks to "
            f"{blocks}, or lower max_model_len to {max(tokens - draft_tokens(spec), 2)}"
        )


def _facts(path: str) -> ModelFacts | str | None:
    """None where the model is not on this machine; a text is what is wrong with its directory."""
    if not Path(path).is_dir():
        return None
    try:
        return read_facts(Path(path))
    except LoadFailed as error:
        return str(error)


def _draft_faults(path: str, draft: DraftModel) -> Iterator[str]:
    facts = _facts(draft.path)
    if facts is None:
        return
    if isinstance(facts, str):
        yield f"draft: {facts}"
        return
    try:
        ours, theirs = (_vocabulary(*_seal(Path(p))) for p in (path, draft.path))
    except LoadFailed as error:
        yield str(error)
        return
    if ours != theirs:
        yield (
            f"the draft model has another vocabulary ({theirs}) than the model ({ours}): its "
            "tokens would mean something else; use a draft with the model's tokenizer"
        )


def _seal(model_dir: Path) -> tuple[Path, int, int]:
    try:
        stat = (model_dir / "tokenizer.json").stat()
    except OSError:
        return model_dir, 0, 0
    return model_dir, stat.st_size, stat.st_mtime_ns


@functools.lru_cache(maxsize=64)
def _vocabulary(model_dir: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 - the file's seal
    return vocabulary_hash(model_dir)
