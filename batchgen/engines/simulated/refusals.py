"""What the simulated engine lacks, and what cannot work in its spec."""

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import SamplingParams
from batchgen.engines.spec import SimulatedSpec


def faults(spec: SimulatedSpec) -> list[str]:
    """What is wrong with the spec; empty where nothing is."""
    numbers = (
        ("max_model_len", spec.max_model_len, 2),
        ("max_num_seqs", spec.max_num_seqs, 1),
        ("default_max_tokens", spec.default_max_tokens, 1),
        ("kv_blocks", spec.kv_blocks, 1),
        ("max_requests_per_process", spec.max_requests_per_process, 1),
        ("load_s", spec.load_s, 0),
        ("step_s", spec.step_s, 0),
        ("step_s_per_seq", spec.step_s_per_seq, 0),
        ("prefill_tok_s", spec.prefill_tok_s, 0),
    )
    wrong = [
        f"{n} must be at least {least}" for n, v, least in numbers if v is not None and v < least
    ]
    if spec.enable_prefix_caching and spec.kv_blocks is None:
        wrong.append("enable_prefix_caching needs kv_blocks: what it keeps must have a bound")
    wrong += [
        f"rules[{i}].factor must be over 0" for i, rule in enumerate(spec.rules) if rule.factor <= 0
    ]
    return wrong


def refusal(sampling: SamplingParams) -> Failed | None:
    """It is certain of every token: there are no alternatives, and no form that it could keep."""
    if sampling.logprobs:
        return Failed(
            400,
            "unsupported_parameter",
            "The simulated engine reports the chosen token's logprob only, no alternatives.",
            "top_logprobs",
        )
    if sampling.scores_prompt:
        return Failed(
            400, "unsupported_parameter", "The simulated engine does not score prompts.", "echo"
        )
    if sampling.grammar is not None:
        return Failed(
            400,
            "unsupported_parameter",
            f"The simulated engine repeats its prompt; it keeps to no '{sampling.grammar.param}'.",
            sampling.grammar.param,
        )
    return None
