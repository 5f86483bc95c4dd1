"""A small Qwen3 in plain torch, with a prefix that is computed once and shared by all rows.

Parameter names are those of Hugging Face's `Qwen3ForCausalLM`: `state_dict()` is what ships.
Shapes below: B rows, S tokens a row, P prefix tokens, H hidden size, D head_dim.
"""

# mypy: allow-subclassing-any

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from batchgen.demo.recipe.tokenizer import MAX_POSITIONS, VOCAB_SIZE

RMS_EPS = 1e-6
ROPE_THETA = 10_000.0

PrefixCache = list[tuple[Tensor, Tensor]]
"""Keys and values of the prefix, one pair a layer, each [1, kv_heads, P, D]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one model."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 64

    def to_config(self, eos_id: int, pad_id: int) -> dict[str, Any]:
        """The Hugging Face config.json of a model of this shape."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "eos_token_id": eos_id,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": MAX_POSITIONS,
            "max_window_layers": self.layers,
            "model_type": "qwen3",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": pad_id,
            "rms_norm_eps": RMS_EPS,
            "rope_scaling": None,
            "rope_theta": ROPE_THETA,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "float16",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": VOCAB_SIZE,
        }


class Attention(nn.Module):
    """Grouped-query attention with RMS-normed queries and keys (Qwen3 technical report, 2025)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = nn.RMSNorm(shape.head_dim, RMS_EPS)
        self.k_norm = nn.RMSNorm(shape.head_dim, RMS_EPS)

    def forward(
        self, x: Tensor, angles: Tensor, mask: Tensor, prefix: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [B, S, H] -> output [B, S, H] and this call's keys and values [B, kv_heads, S, D].

        `angles` are the rotary angles [S, D / 2]; `mask` is True where a query may look,
        [S, P + S].
        """
        rows, tokens, _ = x.shape
        split = (rows, tokens, -1, self.head_dim)
        q = _rotate(self.q_norm(self.q_proj(x).view(split)).transpose(1, 2), angles)
        k = _rotate(self.k_norm(self.k_proj(x).view(split)).transpose(1, 2), angles)
        v = self.v_proj(x).view(split).transpose(1, 2)
        all_k, all_v = k, v
        if prefix is not None:
            all_k = torch.cat((prefix[0].expand(rows, -1, -1, -1), k), dim=2)
            all_v = torch.cat((prefix[1].expand(rows, -1, -1, -1), v), dim=2)
        out = functional.scaled_dot_product_attention(
            q, all_k, all_v, attn_mask=mask, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).reshape(rows, tokens, -1)), (k, v)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each normed before and added after."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, RMS_EPS)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, RMS_EPS)
        self.mlp = FeedForward(shape)

    def forward(
        self, x: Tensor, angles: Tensor, mask: Tensor, prefix: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        attended, kv = self.self_attn(self.input_layernorm(x), angles, mask, prefix)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), kv


class Trunk(nn.Module):
    """Embedding, layers and final norm; named `model` in the checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, RMS_EPS)


class Qwen3(nn.Module):
    """The language model; the output matrix is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, prefix: PrefixCache | None = None) -> tuple[Tensor, PrefixCache]:
        """ids [B, S] -> hidden states [B, S, H] (normed) and the K/V of these tokens.

        With `prefix`, the tokens stand behind it, and gradients flow into it.
        """
        past = prefix[0][0].shape[2] if prefix else 0
        tokens = ids.shape[1]
        angles = _rotary_angles(past, tokens, self.shape.head_dim)
        mask = torch.ones(tokens, past + tokens, dtype=torch.bool).tril(past)
        x = self.model.embed_tokens(ids)
        cache = []
        for number, layer in enumerate(self.model.layers):
            x, kv = layer(x, angles, mask, prefix[number] if prefix else None)
            cache.append(kv)
        return self.model.norm(x), cache

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] -> scores [..., vocabulary]."""
        return functional.linear(hidden, self.model.embed_tokens.weight)


def _rotary_angles(start: int, tokens: int, head_dim: int) -> Tensor:
    """Rotary position angles [tokens, head_dim / 2] (RoFormer, Su et al. 2021)."""
    frequencies = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    positions = torch.arange(start, start + tokens, dtype=torch.float32)
    return torch.outer(positions, frequencies)


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn the halves of x [B, heads, S, D] by `angles`, the pairing of Hugging Face's Qwen3."""
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
