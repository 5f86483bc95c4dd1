"""The answer's body of /v1/responses: a Response object.

`cached_tokens` is a number in this API: it is 0 where the engine cannot tell.
"""

import itertools
from typing import Any

import msgspec

from batchgen.domain.outcomes import Choice, FinishReason, Generation
from batchgen.formats.openai.answers import Answer, text_of
from batchgen.formats.openai.logprobs import chat_logprobs


class _Response(msgspec.Struct, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool = False
    error: None = None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, Any]
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: dict[str, Any]
    system_fingerprint: str | None
    structured_output_error: str | msgspec.UnsetType = msgspec.UNSET


def response(answer: Answer) -> msgspec.Struct:
    """A `response` object; it is incomplete where its answer was cut at its limit."""
    (choice,) = answer.generation.choices
    is_cut = choice.finish_reason is FinishReason.LENGTH
    status = "incomplete" if is_cut else "completed"
    return _Response(
        id=f"resp_{answer.number}",
        created_at=answer.created,
        status=status,
        incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
        model=answer.model,
        output=_output(answer, choice, status),
        usage=_usage(answer.generation),
        system_fingerprint=answer.fingerprint,
        structured_output_error=(msgspec.UNSET if choice.form_fault is None else choice.form_fault),
        **answer.request.mirrored,
    )


def _output(answer: Answer, choice: Choice, status: str) -> list[dict[str, Any]]:
    """What it thought, what it said, what it calls; in that order, as far as there is any."""
    numbers = itertools.count()
    items: list[dict[str, Any]] = []

    def item(kind: str, prefix: str, **fields: Any) -> None:
        id_ = f"{prefix}_{answer.number}{next(numbers):02x}"
        items.append({"id": id_, "type": kind, "status": status, **fields})

    if choice.reasoning:
        thought = {"type": "reasoning_text", "text": choice.reasoning}
        item("reasoning", "rs", summary=[], content=[thought])
    text = text_of(choice)
    if text or not (items or choice.tool_calls):
        logprobs = [] if choice.logprobs is None else chat_logprobs(choice.logprobs, answer.names)
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        item("message", "msg", role="assistant", content=[part])
    for call in choice.tool_calls:
        item("function_call", "fc", call_id=call.id, name=call.name, arguments=call.arguments)
    return items


def _usage(generation: Generation) -> dict[str, Any]:
    reasoning = sum(choice.n_reasoning or 0 for choice in generation.choices)
    cached = {"cached_tokens": generation.n_cached or 0, "cache_write_tokens": 0}
    return {
        "input_tokens": generation.n_in,
        "input_tokens_details": cached,
        "output_tokens": generation.n_out,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": generation.n_in + generation.n_out,
    }
