"""Settings that the pipeline would drop, override or die of: refused with the reason before a load.

Known without importing openvino, so that a model's registration can refuse them, too.
"""

from collections.abc import Iterator

from batchgen.engines.spec import OpenVinoSpec

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS = 256
SAFE_SPECULATIVE_BATCH = 16_384

# Set by the server, or able to name files.
RESERVED_PROPERTIES = frozenset({"CACHE_DIR", "WEIGHTS_PATH", "MODEL_PTR", "LOG_LEVEL"})


def faults(spec: OpenVinoSpec) -> list[str]:
    """What is wrong with the spec, each with the reason; empty where nothing is."""
    return [*_numbers(spec), *_scheduler(spec), *_cache(spec), *_speculation(spec), *_runtime(spec)]


def _numbers(spec: OpenVinoSpec) -> Iterator[str]:
    knobs = spec.scheduler_config
    for name, value, least in (
        ("max_model_len", spec.max_model_len, 2),
        ("max_live_requests", spec.max_live_requests, 1),
        ("max_requests_per_process", spec.max_requests_per_process, 1),
        ("scheduler_config.max_num_seqs", knobs.max_num_seqs, 1),
        ("scheduler_config.max_num_batched_tokens", knobs.max_num_batched_tokens, 1),
        ("scheduler_config.num_kv_blocks", knobs.num_kv_blocks, 0),
        ("scheduler_config.cache_size", knobs.cache_size, 0),
    ):
        if value is not None and value < least:
            yield f"{name} must be at least {least}"


def _scheduler(spec: OpenVinoSpec) -> Iterator[str]:
    knobs = spec.scheduler_config
    seqs = knobs.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    if spec.max_live_requests is not None and spec.max_live_requests > seqs:
        yield f"max_live_requests ({spec.max_live_requests}) is over max_num_seqs ({seqs})"
    if knobs.num_kv_blocks and knobs.cache_size:
        yield "num_kv_blocks and cache_size both size the KV cache, and cache_size would be ignored"
    if knobs.dynamic_split_fuse is False:
        tokens = knobs.max_num_batched_tokens or DEFAULT_MAX_NUM_BATCHED_TOKENS
        if seqs > tokens:
            yield (
                f"dynamic_split_fuse false needs max_num_seqs ({seqs}) within "
                f"max_num_batched_tokens ({tokens})"
            )


def _cache(spec: OpenVinoSpec) -> Iterator[str]:
    knobs = spec.scheduler_config
    if knobs.use_cache_eviction:
        if knobs.enable_prefix_caching:
            yield "enable_prefix_caching and use_cache_eviction exclude each other"
        if knobs.cache_eviction is not None and knobs.cache_eviction.apply_rotation:
            yield "cache_eviction.apply_rotation fails when blocks are evicted"
    elif knobs.cache_eviction is not None:
        yield "cache_eviction has no effect without use_cache_eviction"
    if knobs.sparse_attention is not None and not knobs.use_sparse_attention:
        yield "sparse_attention has no effect without use_sparse_attention"


def _speculation(spec: OpenVinoSpec) -> Iterator[str]:
    if spec.draft is not None and spec.prompt_lookup is not None:
        yield "draft and prompt_lookup exclude each other"
    draft, lookup, knobs = spec.draft, spec.prompt_lookup, spec.scheduler_config
    if lookup is not None and min(lookup.num_assistant_tokens, lookup.max_ngram_size) < 1:
        yield "prompt_lookup needs num_assistant_tokens and max_ngram_size of at least 1"
    if draft is None:
        return
    if (draft.num_assistant_tokens is None) == (draft.assistant_confidence_threshold is None):
        yield "draft needs either num_assistant_tokens or assistant_confidence_threshold"
    if draft.num_assistant_tokens is not None and draft.num_assistant_tokens < 1:
        yield "draft.num_assistant_tokens must be at least 1"
    threshold = draft.assistant_confidence_threshold
    if threshold is not None and not 0 < threshold < 1:
        yield "draft.assistant_confidence_threshold must be between 0 and 1"
    if knobs.dynamic_split_fuse and (knobs.max_num_batched_tokens or 0) < SAFE_SPECULATIVE_BATCH:
        yield (
            "a draft model corrupts answers whose prompt is split across steps: leave "
            f"dynamic_split_fuse out, or set max_num_batched_tokens to {SAFE_SPECULATIVE_BATCH}"
        )


def _runtime(spec: OpenVinoSpec) -> Iterator[str]:
    for name in spec.runtime_config:
        if name in RESERVED_PROPERTIES:
            yield f"runtime_config.{name} is the server's to set"
    if spec.kv_cache_precision is not None and "KV_CACHE_PRECISION" in spec.runtime_config:
        yield "kv_cache_precision and runtime_config.KV_CACHE_PRECISION are the same knob twice"
