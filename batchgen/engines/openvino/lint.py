"""Settings that the pipeline would drop, override or die of: refused with the reason before a load.

Known without importing openvino, so that a model's registration and a job's submission can refuse
them, too. Each fault says what is wrong and what mends it. `lint_files` knows what shows only in
the model's files.
"""

from collections.abc import Iterator

from batchgen.engines.openvino.kv_size import block_tokens
from batchgen.engines.openvino.lint_devices import device_faults, device_warnings, may_be_cpu
from batchgen.engines.openvino.lint_files import file_faults, file_warnings
from batchgen.engines.spec import OpenVinoSpec, SparseAttention

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS = 256
SAFE_SPECULATIVE_BATCH = 16_384
DEFAULT_XATTENTION_BLOCK, DEFAULT_XATTENTION_STRIDE, XATTENTION_BLOCK_UNIT = 64, 8, 32

# Set by the server, or able to name files.
RESERVED_PROPERTIES = frozenset({"CACHE_DIR", "WEIGHTS_PATH", "MODEL_PTR", "LOG_LEVEL"})


def faults(spec: OpenVinoSpec) -> list[str]:
    """What is wrong with the spec, each with reason and mend; empty where nothing is."""
    return [
        *_numbers(spec),
        *_scheduler(spec),
        *_eviction(spec),
        *_sparse_attention(spec),
        *_speculation(spec),
        *_runtime(spec),
        *device_faults(spec),
        *file_faults(spec),
    ]


def warnings(spec: OpenVinoSpec) -> list[str]:
    """What works, and costs something all the same."""
    return [*_costs(spec), *device_warnings(spec), *file_warnings(spec)]


def _numbers(spec: OpenVinoSpec) -> Iterator[str]:
    knobs = spec.scheduler_config
    for name, value, least in (
        ("max_model_len", spec.max_model_len, 2),
        ("max_live_requests", spec.max_live_requests, 1),
        ("max_image_tokens", spec.max_image_tokens, 1),
        ("max_requests_per_process", spec.max_requests_per_process, 1),
        ("scheduler_config.max_num_seqs", knobs.max_num_seqs, 1),
        ("scheduler_config.max_num_batched_tokens", knobs.max_num_batched_tokens, 1),
        ("scheduler_config.num_kv_blocks", knobs.num_kv_blocks, 0),
        ("scheduler_config.cache_size", knobs.cache_size, 0),
        ("scheduler_config.num_linear_attention_blocks", knobs.num_linear_attention_blocks, 0),
        ("scheduler_config.cache_interval_multiplier", knobs.cache_interval_multiplier, 0),
    ):
        if value is not None and value < least:
            yield f"{name} must be at least {least}"


def _scheduler(spec: OpenVinoSpec) -> Iterator[str]:
    knobs = spec.scheduler_config
    seqs = knobs.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    if spec.max_live_requests is not None and spec.max_live_requests > seqs:
        yield (
            f"max_live_requests ({spec.max_live_requests}) is over max_num_seqs ({seqs}), which "
            "bounds the batch: raise max_num_seqs, or lower it"
        )
    if knobs.num_kv_blocks and knobs.cache_size:
        yield (
            "num_kv_blocks and cache_size both size the KV cache, and cache_size would be ignored: "
            "leave one out"
        )
    if knobs.dynamic_split_fuse is False:
        tokens = knobs.max_num_batched_tokens or DEFAULT_MAX_NUM_BATCHED_TOKENS
        if seqs > tokens:
            yield (
                f"dynamic_split_fuse false needs max_num_seqs ({seqs}) within "
                f"max_num_batched_tokens ({tokens}): raise max_num_batched_tokens to that"
            )


def _eviction(spec: OpenVinoSpec) -> Iterator[str]:
    knobs = spec.scheduler_config
    eviction = knobs.cache_eviction
    if not knobs.use_cache_eviction:
        if eviction is not None:
            yield "cache_eviction has no effect without use_cache_eviction: set it to true"
        return
    if knobs.enable_prefix_caching:
        yield (
            "enable_prefix_caching and use_cache_eviction exclude each other (evicted blocks "
            "cannot be shared): switch one off"
        )
    if eviction is None:
        return
    if eviction.apply_rotation:
        yield (
            "cache_eviction.apply_rotation fails when blocks are evicted: leave it out, positions "
            "then stay as they are"
        )
    block = block_tokens(spec)
    sizes = (eviction.start_size, eviction.recent_size, eviction.max_cache_size)
    for name, size in zip(("start_size", "recent_size", "max_cache_size"), sizes, strict=True):
        if size is not None and (size < block or size % block):
            near = max(block, round(size / block) * block)
            yield (
                f"cache_eviction.{name} must be a multiple of the KV block of {block} tokens, "
                f"not {size}: {near} is"
            )
    start, recent, most = sizes
    if start is not None and recent is not None and most is not None and start + recent >= most:
        yield (
            f"cache_eviction.max_cache_size ({most}) leaves nothing to choose from beside "
            f"start_size ({start}) and recent_size ({recent}): it must be over their sum"
        )
    if eviction.aggregation_mode == "ADAPTIVE_RKV" and may_be_cpu(spec.device):
        yield (
            "cache_eviction.aggregation_mode ADAPTIVE_RKV ends the engine at its first eviction on "
            "a CPU: use NORM_SUM or SUM"
        )
    for name, value in (
        ("adaptive_rkv_attention_mass", eviction.adaptive_rkv_attention_mass),
        ("adaptive_rkv_window_size", eviction.adaptive_rkv_window_size),
    ):
        if value is not None and eviction.aggregation_mode != "ADAPTIVE_RKV":
            yield f"cache_eviction.{name} has no effect unless aggregation_mode is ADAPTIVE_RKV"
    crush = (eviction.kvcrush_anchor_point_mode, eviction.kvcrush_rng_seed)
    if any(value is not None for value in crush) and not eviction.kvcrush_budget:
        yield "cache_eviction.kvcrush_… has no effect without kvcrush_budget: set it to some blocks"


def _sparse_attention(spec: OpenVinoSpec) -> Iterator[str]:
    knobs = spec.scheduler_config
    sparse = knobs.sparse_attention
    if sparse is None:
        return
    if not knobs.use_sparse_attention:
        yield "sparse_attention has no effect without use_sparse_attention: set it to true"
        return
    of_trishape = {
        "num_retained_start_tokens_in_cache": sparse.num_retained_start_tokens_in_cache,
        "num_retained_recent_tokens_in_cache": sparse.num_retained_recent_tokens_in_cache,
    }
    of_xattention = {
        "xattention_threshold": sparse.xattention_threshold,
        "xattention_block_size": sparse.xattention_block_size,
        "xattention_stride": sparse.xattention_stride,
    }
    mode = sparse.mode or "TRISHAPE"
    for other, settings in (("XATTENTION", of_xattention), ("TRISHAPE", of_trishape)):
        if mode != other:
            for name in (name for name, value in settings.items() if value is not None):
                yield f"sparse_attention.{name} has no effect unless mode is {other}"
    if mode == "XATTENTION":
        yield from _xattention(sparse)
    block = block_tokens(spec)
    for name, value in of_trishape.items():
        if value is not None and value % block:
            yield (
                f"sparse_attention.{name} must be a multiple of the KV block of {block} tokens, "
                f"not {value}"
            )


def _xattention(sparse: SparseAttention) -> Iterator[str]:
    """Of sizes that do not divide the engine does not think: it leaves its own memory."""
    size, stride = DEFAULT_XATTENTION_BLOCK, DEFAULT_XATTENTION_STRIDE
    if sparse.xattention_block_size is not None:
        size = sparse.xattention_block_size
    if sparse.xattention_stride is not None:
        stride = sparse.xattention_stride
    threshold = sparse.xattention_threshold
    if size < 1 or size % XATTENTION_BLOCK_UNIT:
        yield (
            "sparse_attention.xattention_block_size must be a multiple of "
            f"{XATTENTION_BLOCK_UNIT}, not {size}: the engine fails to load otherwise"
        )
    elif stride < 1 or size % stride:
        yield (
            f"sparse_attention.xattention_stride ({stride}) must divide xattention_block_size "
            f"({size}): the engine dies of memory that is not its own otherwise"
        )
    if threshold is not None and not 0 <= threshold <= 1:
        yield f"sparse_attention.xattention_threshold is a share, from 0 to 1, not {threshold}"


def _speculation(spec: OpenVinoSpec) -> Iterator[str]:
    draft, lookup, knobs = spec.draft, spec.prompt_lookup, spec.scheduler_config
    if draft is not None and lookup is not None:
        yield (
            "draft and prompt_lookup exclude each other (the engine would ignore one without a "
            "word): leave one out"
        )
    if lookup is not None and min(lookup.num_assistant_tokens, lookup.max_ngram_size) < 1:
        yield "prompt_lookup needs num_assistant_tokens and max_ngram_size of at least 1"
    if draft is None:
        return
    if (draft.num_assistant_tokens is None) == (draft.assistant_confidence_threshold is None):
        yield (
            "draft needs either num_assistant_tokens or assistant_confidence_threshold, and not "
            "both: the engine goes by one of them"
        )
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
            yield f"runtime_config.{name} is the server's to set: leave it out"
    if spec.kv_cache_precision is not None and "KV_CACHE_PRECISION" in spec.runtime_config:
        yield (
            "kv_cache_precision and runtime_config.KV_CACHE_PRECISION are the same knob twice: "
            "leave one out"
        )


def _costs(spec: OpenVinoSpec) -> Iterator[str]:
    if spec.draft is not None:
        yield (
            "with a draft model only requests of temperature 0 and one choice run: others end as "
            "error lines"
        )
    if spec.kv_cache_precision == "u4" and spec.scheduler_config.cache_size:
        yield (
            "the engine reckons a byte for each element of a u4 KV cache, so cache_size makes "
            "fewer blocks than there is room for: give num_kv_blocks instead"
        )
