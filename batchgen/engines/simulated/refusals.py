"""What the simulated engine lacks."""

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import SamplingParams


def refusal(sampling: SamplingParams) -> Failed | None:
    """It is certain of every token, so there are no alternatives to report."""
    if sampling.logprobs:
        return Failed(
            400,
            "unsupported_parameter",
            "The simulated engine reports the chosen token's logprob only, no alternatives.",
            "top_logprobs",
        )
    return None
