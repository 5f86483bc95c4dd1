"""What any engine checks of a request before it takes it: most runtimes do not, and die of it."""

from collections.abc import Sequence

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import SamplingParams

SEED_MAX = 2**63 - 1


def prompt_fault(ids: Sequence[int], *, max_model_len: int, vocab_size: int) -> Failed | None:
    """Why these prompt ids cannot be run, or None: empty, too long, or not of the vocabulary."""
    if not ids:
        return Failed(400, "invalid_value", "The prompt is empty.", "prompt")
    if len(ids) >= max_model_len:
        return Failed(
            400,
            "context_length_exceeded",
            f"This model's maximum context length is {max_model_len} tokens, at least one of them "
            f"output; the prompt has {len(ids)}.",
            "prompt",
        )
    if min(ids) < 0 or max(ids) >= vocab_size:
        return Failed(
            400,
            "invalid_value",
            f"The prompt holds a token id outside the vocabulary of {vocab_size}.",
            "prompt",
        )
    return None


def output_limit(
    sampling: SamplingParams, *, n_in: int, max_model_len: int, default: int | None = None
) -> int:
    """How many tokens may be generated: what was asked for, within the model's length.

    `default` is for requests that name no limit (None: up to the model's length).
    """
    room = max_model_len - n_in
    asked = sampling.max_tokens if sampling.max_tokens is not None else default
    return room if asked is None else min(asked, room)


def kv_capacity(message: str) -> Failed:
    """The error line of a request that the KV cache cannot hold even alone."""
    return Failed(400, "kv_capacity", message, "prompt")
