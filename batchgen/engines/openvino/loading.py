"""Loading a pipeline: checks before, the pipeline, and what it turned out to hold."""

import contextlib
import os
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from batchgen.domain.errors import LoadFailed
from batchgen.domain.requests import SamplingParams
from batchgen.engines.openvino.blobs import blob_directory
from batchgen.engines.openvino.device import apply_properties, memory_bytes, physical_devices
from batchgen.engines.openvino.knobs import generation_config, held_by, scheduler_config
from batchgen.engines.openvino.kv_size import block_tokens, memory_fault
from batchgen.engines.openvino.lint import faults
from batchgen.engines.openvino.lora import check_lora
from batchgen.engines.openvino.model_dir import (
    ModelFacts,
    content_hash,
    max_model_len,
    read_facts,
    vocabulary_hash,
)
from batchgen.engines.openvino.vision import IMAGE_TAG
from batchgen.engines.protocol import Applied
from batchgen.engines.spec import DraftModel, Json, OpenVinoSpec

_WARM_UP_ID = 2**63 - 1
_BLOCKS_PRECISION = 0.02


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline that has generated its first token, and what is known of it."""

    pipeline: genai.ContinuousBatchingPipeline
    applied: Applied
    facts: ModelFacts
    scheduler: dict[str, Any]
    devices: list[str]


def load_pipeline(spec: OpenVinoSpec) -> LoadedPipeline:
    """Raises LoadFailed with the reason."""
    started = time.monotonic()
    # oneDNN keeps 1,024 compiled kernels, one for each shape of a step: 80 MB and more, for nothing
    # that could be measured. It reads this once, when it compiles the first one.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    wrong = faults(spec)
    if wrong:
        raise LoadFailed("; ".join(wrong))
    model_dir = Path(spec.path)
    facts = read_facts(model_dir)
    check_content(model_dir, spec.content_hash)
    if spec.draft is not None:
        check_content(Path(spec.draft.path), spec.draft.content_hash)
    length = max_model_len(facts, spec.max_model_len)
    core = ov.Core()
    device = spec.device or "CPU"
    devices = physical_devices(core, device)
    memory = memory_bytes(core, device)
    too_large = memory_fault(spec, memory)
    if too_large is not None:
        raise LoadFailed(too_large)
    properties = _asked_properties(spec, devices)
    held = apply_properties(core, device, properties)
    config = scheduler_config(spec, length)
    cache = blob_directory(spec)
    given: dict[str, Any] = dict(properties)
    if cache.dir is not None:
        given["CACHE_DIR"] = str(cache.dir)
    if spec.draft is not None:
        kept = {} if cache.dir is None else {"CACHE_DIR": str(cache.dir)}
        given["draft_model"] = _draft(core, spec.draft, model_dir, device, properties, kept=kept)
    if spec.prompt_lookup is not None:
        given["prompt_lookup"] = True
    lora = None if spec.lora is None else check_lora(spec.lora, model_dir)
    if lora is not None:
        given["adapters"] = lora.config()
    compiling = time.monotonic()
    try:
        pipeline = genai.ContinuousBatchingPipeline(str(model_dir), config, device, given)
        compile_s = time.monotonic() - compiling
        block_bytes, pool_bytes = _first_token(pipeline, spec, facts)
    except RuntimeError as error:
        raise LoadFailed(f"openvino-genai: {str(error).strip()}{_mend(spec, error)}") from error
    fixed_pool = bool(config.num_kv_blocks or config.cache_size)
    kv_blocks = round(pool_bytes / block_bytes) if fixed_pool and block_bytes else None
    _check_blocks(spec, facts, kv_blocks)
    tokens = block_tokens(spec, devices)
    scheduler = held_by(config)
    applied = Applied(
        engine="openvino",
        engine_version=genai.__version__,
        device=device,
        device_name=", ".join(str(core.get_property(d, "FULL_DEVICE_NAME")) for d in devices),
        config={
            "scheduler_config": scheduler,
            "runtime_config": held.asked,
            "devices": held.devices,
            "device_memory_bytes": memory,
            "max_model_len": length,
            "max_live_requests": spec.max_live_requests,
            "eos_token_ids": list(facts.eos_ids),
            "kv_cache_bytes": pool_bytes if fixed_pool else None,
            "draft": None
            if spec.draft is None
            else _draft_as_applied(spec.draft, device, held.asked),
            "lora": None if lora is None else lora.applied(),
            "prompt_lookup": None
            if spec.prompt_lookup is None
            else {
                "num_assistant_tokens": spec.prompt_lookup.num_assistant_tokens,
                "max_ngram_size": spec.prompt_lookup.max_ngram_size,
            },
            "cache_dir": None if cache.dir is None else str(cache.dir),
            "cache_note": cache.note,
        },
        max_model_len=length,
        vocab_size=facts.vocab_size,
        max_live=min(spec.max_live_requests or config.max_num_seqs, config.max_num_seqs),
        load_s=time.monotonic() - started,
        kv_block_tokens=tokens,
        kv_blocks=kv_blocks,
        kv_bytes_per_token=block_bytes / tokens if block_bytes else None,
        compile_s=compile_s,
        cache_state=cache.state(),
        model_hash=content_hash(model_dir, None),
        image_tag=IMAGE_TAG if facts.sees else None,
        image_tokens=_image_tokens(spec, facts),
        libraries={
            "openvino": ov.__version__,
            "openvino-genai": genai.__version__,
            "openvino-tokenizers": version("openvino-tokenizers"),
            "numpy": np.__version__,
        },
    )
    return LoadedPipeline(pipeline, applied, facts, scheduler, devices)


def _image_tokens(spec: OpenVinoSpec, facts: ModelFacts) -> int:
    if not facts.sees:
        return 0
    tokens = spec.max_image_tokens or facts.image_tokens
    if tokens is None:
        raise LoadFailed(
            "the model's files do not tell how many tokens an image takes at most: give "
            "max_image_tokens"
        )
    return tokens


def check_content(model_dir: Path, registered: str | None) -> None:
    """Raises LoadFailed where the files are not those that were registered (None: any)."""
    if registered is None:
        return
    found = content_hash(model_dir, None)
    if found != registered:
        raise LoadFailed(
            f"{model_dir} holds other files here than were registered (content {found}, "
            f"registered {registered}): copy the registered ones, or register the model again"
        )


def _check_blocks(spec: OpenVinoSpec, facts: ModelFacts, held: int | None) -> None:
    """The pool itself tells how many blocks it has, to the precision of a share of it."""
    asked = spec.scheduler_config.num_kv_blocks
    if not asked or held is None or facts.linear_attention:
        return
    if abs(held - asked) > _BLOCKS_PRECISION * asked:
        raise LoadFailed(
            f"scheduler_config.num_kv_blocks: {asked} was asked for, the pool holds {held}"
        )


def _mend(spec: OpenVinoSpec, error: RuntimeError) -> str:
    """What may help, where it is known."""
    precision = spec.kv_cache_precision or spec.runtime_config.get("KV_CACHE_PRECISION")
    if precision is not None and "cache_type" in str(error):
        return (
            f"\nThis device cannot compute with a KV cache of {precision} at its precision "
            "(INFERENCE_PRECISION_HINT): leave kv_cache_precision out, or take u8 or f16"
        )
    if "single CPU / single GPU / multi GPUs" in str(error):
        return (
            "\nA model split over a GPU and a CPU cannot run continuous batching: name GPUs only "
            "(HETERO:GPU.0,GPU.1), or a device that holds all of it"
        )
    return ""


def _asked_properties(spec: OpenVinoSpec, devices: list[str]) -> dict[str, Json]:
    asked = dict(spec.runtime_config)
    if spec.kv_cache_precision is not None:
        asked["KV_CACHE_PRECISION"] = spec.kv_cache_precision
    if all(device == "CPU" for device in devices):
        # Its cache of shapes grows with every new prompt length; without it memory stays flat, and
        # 2,500 requests of mixed lengths were not slower.
        asked.setdefault("CPU_RUNTIME_CACHE_CAPACITY", "0")
    return asked


def _draft(
    core: ov.Core,
    draft: DraftModel,
    model_dir: Path,
    device: str,
    properties: dict[str, Json],
    *,
    kept: dict[str, str],
) -> Any:
    draft_dir = Path(draft.path)
    read_facts(draft_dir)
    ours, theirs = vocabulary_hash(model_dir), vocabulary_hash(draft_dir)
    if ours != theirs:
        raise LoadFailed(
            f"the draft model has another vocabulary ({theirs}) than the model ({ours}): its "
            "tokens would mean something else"
        )
    draft_device = draft.device or device
    physical_devices(core, draft_device)
    # The properties were checked for the model's device; another device goes by its own defaults.
    given: dict[str, Any] = kept | (properties if draft_device == device else {})
    if draft.kind is not None:
        given[f"{draft.kind}_mode"] = True
    return genai.draft_model(str(draft_dir), draft_device, **given)


def _draft_as_applied(
    draft: DraftModel, device: str, held: dict[str, Json]
) -> dict[str, Json | dict[str, Json]]:
    return {
        "path": draft.path,
        "kind": draft.kind,
        "device": draft.device or device,
        "runtime_config": held if (draft.device or device) == device else {},
        "model_hash": content_hash(Path(draft.path), None),
        "num_assistant_tokens": draft.num_assistant_tokens,
        "assistant_confidence_threshold": draft.assistant_confidence_threshold,
    }


def _first_token(
    pipeline: genai.ContinuousBatchingPipeline, spec: OpenVinoSpec, facts: ModelFacts
) -> tuple[float, int]:
    """Generate two tokens: it warms the pipeline up, and one block's share tells the block's size.

    Returns the bytes of a KV block (0: not told) and of the pool as it stands.
    """
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    config = generation_config(spec, sampling, max_new_tokens=2, end_ids=facts.eos_ids, seed=0)
    if facts.sees:
        handle = pipeline.add_request(_WARM_UP_ID, "a", [], config)
    else:
        prompt = ov.Tensor(np.zeros((1, 1), dtype=np.int64))
        handle = pipeline.add_request(_WARM_UP_ID, prompt, config)
    pipeline.step()
    metrics = pipeline.get_metrics()
    pool_bytes = int(metrics.kv_cache_size_in_bytes)
    block_bytes = pool_bytes * metrics.cache_usage / 100
    while pipeline.has_non_finished_requests():
        pipeline.step()
    if handle.get_status() != genai.GenerationStatus.FINISHED:
        raise LoadFailed("the KV cache does not hold even two tokens")
    with contextlib.suppress(RuntimeError):
        if handle.can_read():
            handle.read_all()
    return block_bytes, pool_bytes
