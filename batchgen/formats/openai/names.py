"""What the endpoints call the same things."""

from dataclasses import replace

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import Endpoint

_OWN_NAMES: dict[Endpoint, dict[str, str]] = {
    Endpoint.CHAT_COMPLETIONS: {"prompt": "messages"},
    Endpoint.COMPLETIONS: {"messages": "prompt", "top_logprobs": "logprobs"},
    Endpoint.RESPONSES: {
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
    },
}


def own_name(endpoint: Endpoint, param: str) -> str:
    """A parameter as this endpoint calls it."""
    return _OWN_NAMES.get(endpoint, {}).get(param, param)


def in_own_words(endpoint: Endpoint, failed: Failed) -> Failed:
    """A failure that names the field which the request has."""
    if failed.param is None:
        return failed
    return replace(failed, param=own_name(endpoint, failed.param))
