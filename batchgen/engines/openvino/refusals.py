"""What openvino-genai's continuous batching lacks; known without importing it."""

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import SamplingParams
from batchgen.engines.checks import SEED_MAX
from batchgen.engines.openvino.lint import DEFAULT_MAX_NUM_SEQS
from batchgen.engines.spec import OpenVinoSpec


def refusal(spec: OpenVinoSpec, sampling: SamplingParams) -> Failed | None:
    """The error line for what the pipeline would ignore, alter or die of; None where it is fine."""
    return _lacking(spec, sampling) or _out_of_range(spec, sampling)


def _lacking(spec: OpenVinoSpec, sampling: SamplingParams) -> Failed | None:
    refused = _without_effect(sampling)
    if refused is None and sampling.scores_prompt:
        refused = _unscored(spec)
    if refused is None and spec.draft is not None:
        refused = _with_draft(sampling)
    if refused is None and sampling.grammar is not None:
        refused = _with_grammar(sampling, sampling.grammar.param)
    return refused


def _without_effect(sampling: SamplingParams) -> Failed | None:
    """What the pipeline would take, and not do."""
    greedy, generates = sampling.temperature == 0, sampling.max_tokens != 0
    if sampling.logprobs is not None and (
        sampling.logprobs > 1
        or (sampling.logprobs == 1 and generates and not _takes_the_likeliest(sampling))
    ):
        return _lacks(
            "openvino-genai reports one logprob a token, the chosen one's: no alternatives "
            "(one is possible with temperature 0 where nothing else has a say in the choice: no "
            "penalty, no min_tokens, no grammar).",
            "top_logprobs",
        )
    if sampling.n > 1 and (greedy or not generates):
        why = "With temperature 0" if generates else "Without generated tokens"
        return _lacks(f"{why} all n choices would be the same.", "n")
    if sampling.min_tokens and sampling.stop:
        return _lacks(
            "openvino-genai holds back end tokens until there are min_tokens, but no stop strings.",
            "min_tokens",
        )
    return None


def _takes_the_likeliest(sampling: SamplingParams) -> bool:
    """Logprobs are of what the model says, before penalties and what is forbidden."""
    return (
        sampling.temperature == 0
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
        and sampling.repetition_penalty == 1
        and sampling.min_tokens == 0
        and sampling.grammar is None
    )


def _with_draft(sampling: SamplingParams) -> Failed | None:
    if sampling.temperature != 0:
        return _lacks(
            "With a draft model openvino-genai gives right answers with temperature 0 only.",
            "temperature",
        )
    if sampling.n > 1:
        return _lacks("With a draft model there can be one choice only.", "n")
    return None


def _with_grammar(sampling: SamplingParams, param: str) -> Failed | None:
    if sampling.n > 1:
        # Its sequences share one matcher, so each is held to what all of them wrote.
        return _lacks(f"With '{param}' openvino-genai can give one choice only.", "n")
    for name, asked in (("min_tokens", sampling.min_tokens), ("ignore_eos", sampling.ignore_eos)):
        if asked:
            return _lacks(f"With '{param}' the form says where the text ends.", name)
    return None


def _unscored(spec: OpenVinoSpec) -> Failed | None:
    if spec.scheduler_config.enable_prefix_caching:
        return _lacks(
            "Prompts cannot be scored with prefix caching: the engine has no logprobs for tokens "
            "that it takes from the cache, and wrong ones for those after. Run the job with "
            "scheduler_config.enable_prefix_caching=false.",
            "echo",
        )
    if spec.draft is not None or spec.prompt_lookup is not None:
        return _lacks(
            "Prompts cannot be scored with speculation: use a model without draft and "
            "prompt_lookup.",
            "echo",
        )
    return None


def _out_of_range(spec: OpenVinoSpec, sampling: SamplingParams) -> Failed | None:
    most = spec.scheduler_config.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    limit = sampling.max_tokens
    for name, valid, range_ in (
        ("seed", sampling.seed is None or 0 <= sampling.seed <= SEED_MAX, f"0 to {SEED_MAX}"),
        ("n", 1 <= sampling.n <= most, f"1 to max_num_seqs, which is {most}"),
        (
            "max_tokens",
            limit is None or limit >= (0 if sampling.echo else 1),
            "at least 1, or 0 with echo",
        ),
        (
            "min_tokens",
            0 <= sampling.min_tokens <= (sampling.min_tokens if limit is None else limit),
            "0 to max_tokens",
        ),
        ("temperature", sampling.temperature >= 0, "at least 0"),
        ("top_p", 0 < sampling.top_p <= 1, "over 0, up to 1"),
        ("top_k", sampling.top_k >= 0, "at least 0 (0: all)"),
        ("min_p", 0 <= sampling.min_p < 1, "0 to below 1"),
        ("presence_penalty", -2 <= sampling.presence_penalty <= 2, "-2 to 2"),
        ("frequency_penalty", -2 <= sampling.frequency_penalty <= 2, "-2 to 2"),
        ("repetition_penalty", sampling.repetition_penalty > 0, "over 0"),
        ("stop", all(sampling.stop), "texts that are not empty"),
    ):
        if not valid:
            return Failed(400, "invalid_value", f"{name} must be {range_}.", name)
    return None


def _lacks(message: str, param: str) -> Failed:
    return Failed(400, "unsupported_parameter", message, param)
