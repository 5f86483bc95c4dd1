"""The engine fingerprint: one short text for everything that decides a loaded engine.

Jobs pin it, sessions and measurements are filed under it, so it must outlive the versions that add
settings: a setting that came later counts only where it is not at its default. What the first
version wrote down whole is still written down whole.

Two rules keep fingerprints apart: the default of a setting never changes (a better one belongs into
the engine, as what None means), and a name is never used again for something else.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from batchgen.engines.spec import (
    CacheEviction,
    DraftModel,
    EngineSpec,
    OpenVinoSpec,
    PromptLookup,
    Rule,
    SchedulerSettings,
    SimulatedSpec,
    SparseAttention,
)

# Not to be added to: whoever adds a setting has nothing to do here.
_IN_THE_FIRST_VERSION: Mapping[str, str] = {
    OpenVinoSpec.__name__: "path device max_model_len kv_cache_precision scheduler_config "
    "runtime_config draft prompt_lookup cache cache_dir max_live_requests max_requests_per_process",
    SchedulerSettings.__name__: "max_num_batched_tokens max_num_seqs num_kv_blocks cache_size "
    "num_linear_attention_blocks cache_interval_multiplier dynamic_split_fuse "
    "enable_prefix_caching use_cache_eviction cache_eviction use_sparse_attention sparse_attention",
    CacheEviction.__name__: "start_size recent_size max_cache_size aggregation_mode "
    "apply_rotation snapkv_window_size kvcrush_budget kvcrush_anchor_point_mode",
    SparseAttention.__name__: "mode num_last_dense_tokens_in_prefill "
    "num_retained_start_tokens_in_cache num_retained_recent_tokens_in_cache "
    "xattention_threshold xattention_block_size xattention_stride",
    DraftModel.__name__: "path device num_assistant_tokens assistant_confidence_threshold",
    PromptLookup.__name__: "num_assistant_tokens max_ngram_size",
    SimulatedSpec.__name__: "path device max_model_len max_num_seqs load_s step_s step_s_per_seq "
    "prefill_tok_s kv_blocks default_max_tokens max_requests_per_process rules",
    Rule.__name__: "contains action after_tokens factor text message signal times",
}


def fingerprint(spec: EngineSpec) -> str:
    """sha256 over the spec's canonical JSON, first 32 hex digits."""
    canonical = msgspec.json.encode(_canonical(spec), order="sorted")
    return hashlib.sha256(canonical).hexdigest()[:32]


def _canonical(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _canonical_struct(value)
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return msgspec.to_builtins(value)


def _canonical_struct(struct: msgspec.Struct) -> dict[str, Any]:
    first = _IN_THE_FIRST_VERSION.get(type(struct).__name__, "").split()
    out: dict[str, Any] = {}
    tag_field = struct.__struct_config__.tag_field
    if tag_field is not None:
        out[tag_field] = struct.__struct_config__.tag
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.name in first or field.required or value != _default(field):
            out[field.encode_name] = _canonical(value)
    return out


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
