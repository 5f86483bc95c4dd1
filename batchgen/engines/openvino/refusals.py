"""What openvino-genai's continuous batching lacks; known without importing it."""

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import SamplingParams
from batchgen.engines.checks import SEED_MAX


def refusal(sampling: SamplingParams) -> Failed | None:
    """The error line for what the pipeline would ignore, alter or die of; None where it is fine."""
    greedy = sampling.temperature == 0
    if sampling.logprobs is not None and (
        sampling.logprobs > 1 or (sampling.logprobs == 1 and not greedy)
    ):
        return _lacks(
            "openvino-genai reports one logprob a token, the chosen one's: no alternatives "
            "(one is possible with temperature 0).",
            "top_logprobs",
        )
    if sampling.seed is not None and not 0 <= sampling.seed <= SEED_MAX:
        return Failed(400, "invalid_value", f"seed must be in 0..{SEED_MAX}.", "seed")
    return None


def _lacks(message: str, param: str) -> Failed:
    return Failed(400, "unsupported_parameter", message, param)
