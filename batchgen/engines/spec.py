"""Engine specs: everything that decides a loaded engine, typed; its hash is the fingerprint."""

import hashlib
from typing import Any, Literal, cast

import msgspec

from batchgen.domain.errors import InvalidRequest, UnknownOption

Json = str | int | float | bool | None


class SparseAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["TRISHAPE", "XATTENTION"] | None = None
    num_last_dense_tokens_in_prefill: int | None = None
    num_retained_start_tokens_in_cache: int | None = None
    num_retained_recent_tokens_in_cache: int | None = None
    xattention_threshold: float | None = None
    xattention_block_size: int | None = None
    xattention_stride: int | None = None


class CacheEviction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    start_size: int | None = None
    recent_size: int | None = None
    max_cache_size: int | None = None
    aggregation_mode: Literal["SUM", "NORM_SUM", "ADAPTIVE_RKV"] | None = None
    apply_rotation: bool | None = None
    snapkv_window_size: int | None = None
    kvcrush_budget: int | None = None
    kvcrush_anchor_point_mode: Literal["RANDOM", "ZEROS", "ONES", "MEAN", "ALTERNATING"] | None = (
        None
    )


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """openvino-genai's SchedulerConfig by its own names; None keeps the engine's default.

    `cache_size` is in GB, as the engine has it.
    """

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    num_kv_blocks: int | None = None
    cache_size: int | None = None
    num_linear_attention_blocks: int | None = None
    cache_interval_multiplier: int | None = None
    dynamic_split_fuse: bool | None = None
    enable_prefix_caching: bool | None = None
    use_cache_eviction: bool | None = None
    cache_eviction: CacheEviction | None = None
    use_sparse_attention: bool | None = None
    sparse_attention: SparseAttention | None = None


class DraftModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft model and how many tokens it proposes: a fixed number, or while confident."""

    path: str
    device: str | None = None
    num_assistant_tokens: int | None = None
    assistant_confidence_threshold: float | None = None


class PromptLookup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculation by n-gram lookup in the prompt."""

    num_assistant_tokens: int
    max_ngram_size: int = 3


class OpenVinoSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="engine",
    tag="openvino",
):
    """An engine on openvino-genai's ContinuousBatchingPipeline.

    `device` None is the device of the worker that runs it. `runtime_config` holds OpenVINO
    properties. `cache_dir` is derived by the server, never given by a user. `max_live_requests`
    bounds the requests handed to the pipeline at once; `max_requests_per_process` recycles the host
    after that many.
    """

    path: str
    device: str | None = None
    max_model_len: int | None = None
    kv_cache_precision: Literal["u8", "u4", "f16", "bf16", "f32"] | None = None
    scheduler_config: SchedulerSettings = SchedulerSettings()
    runtime_config: dict[str, Json] = {}
    draft: DraftModel | None = None
    prompt_lookup: PromptLookup | None = None
    cache: bool = True
    cache_dir: str | None = None
    max_live_requests: int | None = None
    max_requests_per_process: int | None = 20_000


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the simulated engine does with requests whose prompt text contains `contains`.

    `fail` makes it an error line with `message`, `crash` ends the process with `signal` (default
    SIGKILL), `raise` raises from step, `hang` never returns from step, `slow` multiplies the
    request's decode time by `factor`, `answer` generates `text`. `after_tokens` delays the deed
    until so many output tokens. `times` bounds how often it happens in one process (None: always).
    """

    contains: str
    action: Literal["fail", "crash", "raise", "hang", "slow", "answer"]
    after_tokens: int = 0
    factor: float = 1.0
    text: str = ""
    message: str = "scripted failure"
    signal: int = 9
    times: int | None = None


class SimulatedSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="engine",
    tag="simulated",
):
    """A scripted engine for tests and capacity planning; it computes no model.

    It repeats the prompt, a token a step. `step_s` is a step's time with an empty batch,
    `step_s_per_seq` is added for each running sequence, `prefill_tok_s` bounds prefill (0: at
    once). `path` is a model directory for its tokenizer and template, None is bytes as tokens.
    """

    path: str | None = None
    device: str | None = None
    max_model_len: int = 4096
    max_num_seqs: int = 256
    load_s: float = 0.0
    step_s: float = 0.0
    step_s_per_seq: float = 0.0
    prefill_tok_s: float = 0.0
    kv_blocks: int | None = None
    default_max_tokens: int = 16
    max_requests_per_process: int | None = None
    rules: list[Rule] = []


EngineSpec = OpenVinoSpec | SimulatedSpec

_TYPES: dict[str, type[OpenVinoSpec | SimulatedSpec]] = {
    "openvino": OpenVinoSpec,
    "simulated": SimulatedSpec,
}


def decode_spec(data: dict[str, Any]) -> EngineSpec:
    """The typed spec of a JSON object.

    Raises UnknownOption (naming the nearest known one) or InvalidRequest (naming the place).
    """
    kind = data.get("engine")
    if kind not in _TYPES:
        raise InvalidRequest(
            f"engine must be one of {', '.join(sorted(_TYPES))}, not {kind!r}", param="engine"
        )
    _refuse_unknown(data, _TYPES[kind], where=f"{kind} engine")
    try:
        return cast("EngineSpec", msgspec.convert(data, EngineSpec))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"engine settings: {error}", param="engine") from error


def encode_spec(spec: EngineSpec) -> dict[str, Any]:
    """The spec as JSON, every field present."""
    return cast("dict[str, Any]", msgspec.to_builtins(spec))


def fingerprint(spec: EngineSpec) -> str:
    """The engine fingerprint: sha256 over the spec's canonical JSON, first 32 hex digits."""
    canonical = msgspec.json.encode(encode_spec(spec), order="sorted")
    return hashlib.sha256(canonical).hexdigest()[:32]


def _refuse_unknown(data: dict[str, Any], kind: type[msgspec.Struct], *, where: str) -> None:
    known = {f.encode_name: f.type for f in msgspec.structs.fields(kind)} | {"engine": str}
    for name, value in data.items():
        if name not in known:
            raise UnknownOption.named(name, known, where=where)
        if isinstance(value, dict):
            for nested in _structs_in(known[name]):
                _refuse_unknown(value, nested, where=f"{where}.{name}")


def _structs_in(annotation: Any) -> list[type[msgspec.Struct]]:
    candidates = getattr(annotation, "__args__", (annotation,))
    return [c for c in candidates if isinstance(c, type) and issubclass(c, msgspec.Struct)]
