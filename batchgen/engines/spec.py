"""Engine specs: everything that decides a loaded engine, typed."""

from typing import Any, Literal, cast

import msgspec

from batchgen.domain.errors import InvalidRequest, UnknownOption

Json = str | int | float | bool | None
ToolParser = Literal["hermes", "llama3_json", "mistral", "mistral_named", "qwen3_coder", "none"]
ReasoningParser = Literal["think", "mistral", "none"]


class SparseAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """openvino-genai's SparseAttentionConfig by its own names; None keeps the engine's default."""

    mode: Literal["TRISHAPE", "XATTENTION"] | None = None
    """The algorithm."""
    num_last_dense_tokens_in_prefill: int | None = None
    """So many tokens at the prompt's end attend to everything."""
    num_retained_start_tokens_in_cache: int | None = None
    """TRISHAPE: tokens kept from the beginning, a multiple of the KV block."""
    num_retained_recent_tokens_in_cache: int | None = None
    """TRISHAPE: tokens kept from the end, a multiple of the KV block."""
    xattention_threshold: float | None = None
    """XATTENTION: the share of importance to be computed; less is faster and less exact."""
    xattention_block_size: int | None = None
    """XATTENTION: tokens in a block that is computed or left out."""
    xattention_stride: int | None = None
    """XATTENTION: how coarsely importance is sampled; more is cheaper."""


class CacheEviction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """openvino-genai's CacheEvictionConfig by its own names; None keeps the engine's default."""

    start_size: int | None = None
    """Tokens always kept from the beginning, a multiple of the KV block."""
    recent_size: int | None = None
    """Tokens always kept from the end, a multiple of the KV block."""
    max_cache_size: int | None = None
    """Tokens kept in all, a multiple of the KV block."""
    aggregation_mode: Literal["SUM", "NORM_SUM", "ADAPTIVE_RKV"] | None = None
    """How a token's importance is computed."""
    apply_rotation: bool | None = None
    """Whether positions are closed up after an eviction."""
    snapkv_window_size: int | None = None
    """Tokens at the prompt's end that decide the first importances."""
    kvcrush_budget: int | None = None
    """Blocks kept for variety, by KVCrush; 0: none."""
    kvcrush_anchor_point_mode: Literal["RANDOM", "ZEROS", "ONES", "MEAN", "ALTERNATING"] | None = (
        None
    )
    """What KVCrush compares tokens with."""
    kvcrush_rng_seed: int | None = None
    """The seed of KVCrush's RANDOM comparison."""
    adaptive_rkv_attention_mass: float | None = None
    """ADAPTIVE_RKV: the share of attention that the kept tokens must make up, 0 to 1."""
    adaptive_rkv_window_size: int | None = None
    """ADAPTIVE_RKV: over so many of the latest tokens importance is summed."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """openvino-genai's SchedulerConfig by its own names; None keeps the engine's default.

    `cache_size` is in GB, as the engine has it.
    """

    max_num_batched_tokens: int | None = None
    """Tokens in a step, of prompts and answers together."""
    max_num_seqs: int | None = None
    """Sequences in a step."""
    num_kv_blocks: int | None = None
    """The KV cache's size in blocks; excludes `cache_size`."""
    cache_size: int | None = None
    """The KV cache's size in GB; without either it grows as needed."""
    num_linear_attention_blocks: int | None = None
    """Blocks for the state of models with linear attention."""
    cache_interval_multiplier: int | None = None
    """KV blocks between two stored states of linear attention, for prefix caching."""
    dynamic_split_fuse: bool | None = None
    """Long prompts are split over steps, beside running sequences."""
    enable_prefix_caching: bool | None = None
    """Equal beginnings of prompts share KV blocks, which stay until room is needed."""
    use_cache_eviction: bool | None = None
    """Unimportant KV blocks of long sequences are dropped."""
    cache_eviction: CacheEviction | None = None
    """How they are chosen."""
    use_sparse_attention: bool | None = None
    """Prefill computes a part of the attention only."""
    sparse_attention: SparseAttention | None = None
    """Which part."""


class DraftModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft model and how many tokens it proposes: a fixed number, or while confident."""

    path: str
    """An OpenVINO model directory with the same tokenizer."""
    content_hash: str | None = None
    """What its files must hash to; put in by the server, never given by a user."""
    kind: Literal["eagle3", "mtp", "dflash"] | None = None
    """Heads that were trained to draft for this model. Default: a smaller model of its own."""
    device: str | None = None
    """As OpenVINO names it. Default: the model's."""
    num_assistant_tokens: int | None = None
    """Tokens proposed each time."""
    assistant_confidence_threshold: float | None = None
    """Instead: propose while the draft is this sure, 0 to 1."""


class PromptLookup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculation by n-gram lookup in the prompt."""

    num_assistant_tokens: int
    """Tokens proposed each time."""
    max_ngram_size: int = 3
    """The longest ending of the text that is looked up in it."""


class LoraAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA adapter that changes the model for all of an engine's requests."""

    path: str
    """A safetensors file in PEFT's layout, made for this very model."""
    content_hash: str | None = None
    """What it must hash to; put in by the server, never given by a user."""
    alpha: float | None = None
    """Its scale. Default: lora_alpha / r of the adapter_config.json beside it, else 1."""


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
    """The model directory on the workers' machines: OpenVINO IR, tokenizer, chat template."""
    device: str | None = None
    """As OpenVINO names it: CPU, GPU.0, HETERO:… Default: the worker's own."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together. Default: the model's own limit."""
    kv_cache_precision: Literal["u8", "u4", "f16", "bf16", "f32"] | None = None
    """Element type of the KV cache."""
    scheduler_config: SchedulerSettings = SchedulerSettings()
    """See below."""
    runtime_config: dict[str, Json] = {}
    """OpenVINO properties, by their names."""
    draft: DraftModel | None = None
    """See below."""
    prompt_lookup: PromptLookup | None = None
    """See below."""
    content_hash: str | None = None
    """What its files must hash to; put in by the server, never given by a user."""
    tool_parser: ToolParser | None = None
    """How the model writes tool calls; `none` leaves them in the text. Default: by its template."""
    reasoning_parser: ReasoningParser | None = None
    """How it marks its thinking; `none` leaves it in the text. Default: by its template."""
    max_image_tokens: int | None = None
    """Tokens that an image takes at most, for models that see. Default: as its files tell."""
    lora: LoraAdapter | None = None
    """See below."""
    cache: bool = True
    """Compiled models are kept for the next start."""
    cache_dir: str | None = None
    """Where; derived by the server, never given by a user."""
    max_live_requests: int | None = None
    """Requests handed to the pipeline at once. Default: what keeps its batch full."""
    max_requests_per_process: int | None = 20_000
    """The host process is replaced after so many, since memory grows slowly."""


class OpenVinoEmbeddingSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="engine",
    tag="openvino-embeddings",
):
    """An embedding model on openvino-genai's TextEmbeddingPipeline."""

    path: str
    """The model directory on the workers' machines: OpenVINO IR of a text encoder, tokenizer."""
    device: str | None = None
    """As OpenVINO names it: CPU, GPU.0, HETERO:… Default: the worker's own."""
    max_model_len: int | None = None
    """Tokens of one text at most. Default: the model's own limit."""
    pooling: Literal["cls", "mean", "last_token"] = "cls"
    """How the vectors of a text's tokens become one, as the model was trained."""
    normalize: bool = True
    """Vectors have length 1."""
    embed_instruction: str | None = None
    """Put before each text, for models that were trained with one."""
    batch_size: int = 32
    """Texts computed at once."""
    runtime_config: dict[str, Json] = {}
    """OpenVINO properties, by their names."""
    content_hash: str | None = None
    """What its files must hash to; put in by the server, never given by a user."""
    max_requests_per_process: int | None = 20_000
    """The host process is replaced after so many, since memory grows slowly."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the simulated engine does with requests whose prompt text contains `contains`.

    `fail` makes it an error line with `message`, `crash` ends the process with `signal` (default
    SIGKILL), `raise` raises from step, `hang` never returns from step, `slow` multiplies the
    request's decode time by `factor`, `answer` generates `text`. `after_tokens` delays the deed
    until so many output tokens. `times` bounds how often it happens in one process (None: always).
    """

    contains: str
    """Which requests: those whose prompt holds this text."""
    action: Literal["fail", "crash", "raise", "hang", "slow", "answer"]
    """The deed; see above."""
    after_tokens: int = 0
    """Only after so many output tokens."""
    factor: float = 1.0
    """slow: the decode time is multiplied by this."""
    text: str = ""
    """answer: what is generated."""
    message: str = "scripted failure"
    """fail: what the error line says."""
    signal: int = 9
    """crash: the signal that ends the process."""
    times: int | None = None
    """At most so often in one process. Default: always."""


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
    once). With `enable_prefix_caching` prompts that begin alike share blocks of the `kv_blocks`,
    which are not prefilled again while they are there. `path` is a model directory for its
    tokenizer and template, None is bytes as tokens.
    """

    path: str | None = None
    """A model directory, for its tokenizer and template. Default: bytes are tokens."""
    device: str | None = None
    """Any name. Default: the worker's own."""
    max_model_len: int = 4096
    """Tokens of prompt and answer together."""
    max_num_seqs: int = 256
    """Sequences in a step."""
    load_s: float = 0.0
    """Seconds that loading takes."""
    step_s: float = 0.0
    """Seconds of a step with an empty batch."""
    step_s_per_seq: float = 0.0
    """Seconds that each running sequence adds to a step."""
    prefill_tok_s: float = 0.0
    """Prompt tokens a second; 0: no time at all."""
    kv_blocks: int | None = None
    """The KV cache's size in blocks. Default: as much as is needed."""
    enable_prefix_caching: bool = False
    """Equal beginnings of prompts share KV blocks."""
    default_max_tokens: int = 16
    """Tokens of an answer that asks for no number."""
    max_requests_per_process: int | None = None
    """The host process is replaced after so many."""
    tool_parser: ToolParser | None = None
    """As for openvino."""
    reasoning_parser: ReasoningParser | None = None
    """As for openvino."""
    rules: list[Rule] = []
    """What is done with which requests; see below."""


EngineSpec = OpenVinoSpec | OpenVinoEmbeddingSpec | SimulatedSpec

_TYPES: dict[str, type[OpenVinoSpec | OpenVinoEmbeddingSpec | SimulatedSpec]] = {
    "openvino": OpenVinoSpec,
    "openvino-embeddings": OpenVinoEmbeddingSpec,
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
