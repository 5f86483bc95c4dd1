"""How large a KV cache is: from a model's config.json and an element type, without loading it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.chat.tokenizer import read_json
from batchgen.engines.openvino.lint_devices import listed_devices
from batchgen.engines.spec import OpenVinoSpec

_BLOCK_TOKENS, _GPU_BLOCK_TOKENS, _GPU_XATTENTION_BLOCK_TOKENS = 32, 16, 256
# Of an element; what is stored beside the elements to read them back comes on top (measured with
# heads of 64: 19 % for u8, and so much for u4 that its blocks are larger than those of u8).
_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "u8": 8.0, "u4": 4.0}
_DEFAULT_PRECISION = "u8"
# Of a draft model that proposes while it is confident.
_LONGEST_DRAFT = 32


@dataclass(frozen=True)
class KvShape:
    """What one token takes of a model's KV cache."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, precision: str) -> float:
        """At least so much: keys and values of every layer, without what quantizing adds."""
        elements = 2 * self.layers * self.kv_heads * self.head_dim
        return elements * _BITS[precision] / 8


def block_tokens(spec: OpenVinoSpec, devices: Sequence[str] | None = None) -> int:
    """Tokens in a block of the KV cache: openvino-genai has them by device.

    `devices` are those behind the device string where they are known; without any device a CPU is
    assumed.
    """
    names = listed_devices(spec.device or "CPU")[1] if devices is None else devices
    if not names or not all(name.startswith("GPU") for name in names):
        return _BLOCK_TOKENS
    knobs = spec.scheduler_config
    sparse = knobs.sparse_attention if knobs.use_sparse_attention else None
    by_blocks = sparse is not None and sparse.mode == "XATTENTION"
    return _GPU_XATTENTION_BLOCK_TOKENS if by_blocks else _GPU_BLOCK_TOKENS


def draft_tokens(spec: OpenVinoSpec) -> int:
    """Tokens that speculation puts into the cache before they are verified, at most."""
    if spec.prompt_lookup is not None:
        return spec.prompt_lookup.num_assistant_tokens + 1
    if spec.draft is not None:
        return (spec.draft.num_assistant_tokens or _LONGEST_DRAFT) + 1
    return 0


def kv_shape(model_dir: Path) -> KvShape | None:
    """None where config.json does not tell, or layers differ in kind."""
    config = read_json(model_dir / "config.json")
    config = config.get("text_config", config)
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not isinstance(layers, int) or not isinstance(heads, int) or heads < 1:
        return None
    kinds: list[str] = config.get("layer_types") or ["full_attention"] * layers
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or _whole(config, "hidden_size") // heads
    attending = sum(kind in {"full_attention", "sliding_attention"} for kind in kinds)
    if attending < 1 or not isinstance(kv_heads, int) or not isinstance(head_dim, int):
        return None
    return KvShape(attending, kv_heads, head_dim) if head_dim > 0 and kv_heads > 0 else None


def kv_precision(spec: OpenVinoSpec) -> str | None:
    """The element type that is asked for, or the engine's default; None where it is not known."""
    asked = spec.kv_cache_precision or spec.runtime_config.get("KV_CACHE_PRECISION")
    named = _DEFAULT_PRECISION if asked is None else str(asked).lower()
    return named if named in _BITS else None


def pool_tokens(spec: OpenVinoSpec) -> int | None:
    """How many tokens the pool of these settings holds; None where it grows, or is not known."""
    knobs = spec.scheduler_config
    if knobs.num_kv_blocks:
        return knobs.num_kv_blocks * block_tokens(spec)
    shape, precision = kv_shape(Path(spec.path)), kv_precision(spec)
    if not knobs.cache_size or shape is None or precision is None:
        return None
    return int(knobs.cache_size * 2**30 / shape.bytes_per_token(precision))


def pool_bytes(spec: OpenVinoSpec) -> float | None:
    """At least so many bytes the pool of these settings takes; None where it grows."""
    knobs = spec.scheduler_config
    if knobs.cache_size:
        return knobs.cache_size * 2.0**30
    shape, precision = kv_shape(Path(spec.path)), kv_precision(spec)
    if not knobs.num_kv_blocks or shape is None or precision is None:
        return None
    return knobs.num_kv_blocks * block_tokens(spec) * shape.bytes_per_token(precision)


def memory_fault(spec: OpenVinoSpec, memory_bytes: int | None) -> str | None:
    """Why the KV cache cannot fit into a device of so much memory; None where it may, or is not
    known.
    """
    needed = pool_bytes(spec)
    if needed is None or memory_bytes is None or needed <= memory_bytes:
        return None
    shape, precision = kv_shape(Path(spec.path)), kv_precision(spec)
    if shape is None or precision is None:
        mend = "lower cache_size"
    else:
        tokens = block_tokens(spec)
        block = tokens * shape.bytes_per_token(precision)
        mend = (
            f"a block of {tokens} tokens takes at least {block / 1e6:.3g} MB, so lower "
            f"num_kv_blocks to well under {int(memory_bytes / block):,}, or lower cache_size"
        )
    return (
        f"the KV cache would take {needed / 1e9:,.1f} GB, the device has {memory_bytes / 1e9:,.1f} "
        f"GB: {mend}"
    )


def _whole(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0
