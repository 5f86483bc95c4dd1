"""From a spec to the pipeline's own objects, and back to what these hold."""

from collections.abc import Iterable
from typing import Any

import msgspec
import openvino_genai as genai

from batchgen.domain.errors import LoadFailed
from batchgen.domain.requests import SamplingParams
from batchgen.engines.openvino.grammars import structured_output
from batchgen.engines.spec import CacheEviction, OpenVinoSpec, SparseAttention

_NESTED = {"cache_eviction": "cache_eviction_config", "sparse_attention": "sparse_attention_config"}


def scheduler_config(spec: OpenVinoSpec, max_model_len: int) -> genai.SchedulerConfig:
    """The pipeline's scheduler configuration. Raises LoadFailed where it holds something else."""
    config = genai.SchedulerConfig()
    for name, asked in _given(spec.scheduler_config).items():
        if name == "cache_eviction":
            config.cache_eviction_config = _eviction(spec.scheduler_config.cache_eviction)
        elif name == "sparse_attention":
            config.sparse_attention_config = _sparse(spec.scheduler_config.sparse_attention)
        else:
            setattr(config, name, asked)
    if spec.draft is not None and spec.scheduler_config.dynamic_split_fuse is None:
        # A prompt that is split across steps corrupts speculative answers: no prompt may be.
        config.dynamic_split_fuse = False
        if spec.scheduler_config.max_num_batched_tokens is None:
            config.max_num_batched_tokens = max(max_model_len, config.max_num_seqs)
    _compare(_given(spec.scheduler_config), held_by(config), "scheduler_config")
    return config


def held_by(config: genai.SchedulerConfig) -> dict[str, Any]:
    """What a scheduler configuration holds, as JSON by the spec's names."""
    names = [
        field.name for field in msgspec.structs.fields(type(OpenVinoSpec(path="").scheduler_config))
    ]
    held = {name: getattr(config, name) for name in names if name not in _NESTED}
    held["cache_eviction"] = None
    if config.use_cache_eviction:
        eviction = config.cache_eviction_config
        held["cache_eviction"] = {
            "start_size": eviction.get_start_size(),
            "recent_size": eviction.get_recent_size(),
            "max_cache_size": eviction.get_max_cache_size(),
            "aggregation_mode": eviction.aggregation_mode.name,
            "apply_rotation": eviction.apply_rotation,
            "snapkv_window_size": eviction.snapkv_window_size,
            "kvcrush_budget": eviction.kvcrush_config.budget,
            "kvcrush_anchor_point_mode": eviction.kvcrush_config.anchor_point_mode.name,
            "kvcrush_rng_seed": eviction.kvcrush_config.rng_seed,
            "adaptive_rkv_attention_mass": eviction.adaptive_rkv_config.attention_mass,
            "adaptive_rkv_window_size": eviction.adaptive_rkv_config.window_size,
        }
    held["sparse_attention"] = None
    if config.use_sparse_attention:
        sparse = config.sparse_attention_config
        fields = msgspec.structs.fields(SparseAttention)
        held["sparse_attention"] = {
            field.name: sparse.mode.name if field.name == "mode" else getattr(sparse, field.name)
            for field in fields
        }
    return held


def generation_config(
    spec: OpenVinoSpec,
    sampling: SamplingParams,
    *,
    max_new_tokens: int,
    end_ids: Iterable[int],
    seed: int,
) -> genai.GenerationConfig:
    """One request's configuration. `end_ids` are the model's own; `seed` is for unseeded requests.

    Raises LoadFailed from no value: what the pipeline refuses, it refuses in add_request.
    """
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = max_new_tokens
    config.min_new_tokens = min(sampling.min_tokens, max_new_tokens)
    ends = set() if sampling.ignore_eos else set(end_ids)
    config.stop_token_ids = ends | set(sampling.stop_token_ids)
    # With an eos_token_id of -1 the pipeline puts the model's own back in, and its ignore_eos
    # ignores every stop token: so any stop token plays the end token's part, and only without any
    # is it used.
    config.eos_token_id = min(config.stop_token_ids, default=-1)
    config.ignore_eos = not config.stop_token_ids
    config.stop_strings = set(sampling.stop)
    # Else the ids that make up the stop string are missing from the output and its count.
    config.include_stop_str_in_output = True
    config.do_sample = sampling.temperature > 0
    if config.do_sample:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        config.min_p = sampling.min_p
        if sampling.top_k:
            config.top_k = sampling.top_k
        config.num_return_sequences = sampling.n
        config.rng_seed = seed if sampling.seed is None else sampling.seed
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    config.repetition_penalty = sampling.repetition_penalty
    config.logprobs = 0 if sampling.logprobs is None else 1
    # An echo without scores needs nothing of the engine: everybody has the prompt.
    config.echo = sampling.scores_prompt
    if sampling.grammar is not None:
        config.structured_output_config = structured_output(sampling.grammar)
    if spec.draft is not None and spec.draft.num_assistant_tokens is not None:
        config.num_assistant_tokens = spec.draft.num_assistant_tokens
    if spec.draft is not None and spec.draft.assistant_confidence_threshold is not None:
        config.assistant_confidence_threshold = spec.draft.assistant_confidence_threshold
    if spec.prompt_lookup is not None:
        config.num_assistant_tokens = spec.prompt_lookup.num_assistant_tokens
        config.max_ngram_size = spec.prompt_lookup.max_ngram_size
    return config


def _eviction(asked: CacheEviction | None) -> genai.CacheEvictionConfig:
    asked = asked or CacheEviction()
    own = genai.SchedulerConfig().cache_eviction_config
    crush = own.kvcrush_config
    if asked.kvcrush_budget is not None:
        crush.budget = asked.kvcrush_budget
    if asked.kvcrush_anchor_point_mode is not None:
        crush.anchor_point_mode = getattr(
            genai.KVCrushAnchorPointMode, asked.kvcrush_anchor_point_mode
        )
    if asked.kvcrush_rng_seed is not None:
        crush.rng_seed = asked.kvcrush_rng_seed
    mode = asked.aggregation_mode
    made = genai.CacheEvictionConfig(
        start_size=_or(asked.start_size, own.get_start_size()),
        recent_size=_or(asked.recent_size, own.get_recent_size()),
        max_cache_size=_or(asked.max_cache_size, own.get_max_cache_size()),
        aggregation_mode=own.aggregation_mode
        if mode is None
        else getattr(genai.AggregationMode, mode),
        apply_rotation=_or(asked.apply_rotation, own.apply_rotation),
        snapkv_window_size=_or(asked.snapkv_window_size, own.snapkv_window_size),
        kvcrush_config=crush,
    )
    rkv = made.adaptive_rkv_config
    rkv.attention_mass = _or(asked.adaptive_rkv_attention_mass, rkv.attention_mass)
    rkv.window_size = _or(asked.adaptive_rkv_window_size, rkv.window_size)
    made.adaptive_rkv_config = rkv
    return made


def _sparse(asked: SparseAttention | None) -> genai.SparseAttentionConfig:
    config = genai.SparseAttentionConfig()
    for name, value in _given(asked or SparseAttention()).items():
        setattr(
            config, name, getattr(genai.SparseAttentionMode, value) if name == "mode" else value
        )
    return config


def _given(settings: msgspec.Struct) -> dict[str, Any]:
    """The fields that are set, nested ones as dictionaries of what is set in them."""
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, msgspec.Struct):
            given[field.name] = _given(value)
        elif value is not None:
            given[field.name] = value
    return given


def _compare(asked: dict[str, Any], held: dict[str, Any], where: str) -> None:
    for name, value in asked.items():
        if isinstance(value, dict):
            _compare(value, held[name] or {}, f"{where}.{name}")
        elif isinstance(value, float):
            if abs(held[name] - value) > 1e-6 * abs(value):  # single precision inside
                raise LoadFailed(
                    f"{where}.{name}: {value} was asked for, the engine holds {held[name]}"
                )
        elif held.get(name) != value:
            raise LoadFailed(
                f"{where}.{name}: {value} was asked for, the engine holds {held.get(name)}"
            )


def _or(asked: Any, otherwise: Any) -> Any:
    return otherwise if asked is None else asked
