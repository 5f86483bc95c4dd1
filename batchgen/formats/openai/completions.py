"""The answers' bodies of /v1/chat/completions and /v1/completions."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from batchgen.domain.outcomes import Choice, Generation, ToolCall
from batchgen.formats.openai.answers import Answer, text_of
from batchgen.formats.openai.logprobs import chat_logprobs, text_logprobs


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None
    completion_tokens_details: dict[str, int] | UnsetType = UNSET


class _Message(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class _ChatChoice(msgspec.Struct):
    index: int
    message: _Message
    logprobs: dict[str, Any] | None
    finish_reason: str
    structured_output_error: str | UnsetType = UNSET


class _TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    structured_output_error: str | UnsetType = UNSET


class _Completion(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_ChatChoice] | list[_TextChoice]
    usage: _Usage
    system_fingerprint: str | None


def chat_completion(answer: Answer) -> msgspec.Struct:
    """A `chat.completion` object."""
    return _Completion(
        id=f"chatcmpl-{answer.number}",
        object="chat.completion",
        created=answer.created,
        model=answer.model,
        choices=[_chat_choice(answer, i, c) for i, c in enumerate(answer.generation.choices)],
        usage=_usage(answer.generation),
        system_fingerprint=answer.fingerprint,
    )


def text_completion(answer: Answer) -> msgspec.Struct:
    """A `text_completion` object."""
    return _Completion(
        id=f"cmpl-{answer.number}",
        object="text_completion",
        created=answer.created,
        model=answer.model,
        choices=[_text_choice(answer, i, c) for i, c in enumerate(answer.generation.choices)],
        usage=_usage(answer.generation),
        system_fingerprint=answer.fingerprint,
    )


def _usage(generation: Generation) -> _Usage:
    cached = generation.n_cached
    thought = [c.n_reasoning for c in generation.choices if c.n_reasoning is not None]
    return _Usage(
        prompt_tokens=generation.n_in,
        completion_tokens=generation.n_out,
        total_tokens=generation.n_in + generation.n_out,
        prompt_tokens_details=None if cached is None else {"cached_tokens": cached},
        completion_tokens_details={"reasoning_tokens": sum(thought)} if thought else UNSET,
    )


def _chat_choice(answer: Answer, index: int, choice: Choice) -> _ChatChoice:
    logprobs = None
    if choice.logprobs is not None:
        content = chat_logprobs(choice.logprobs, answer.names)
        logprobs = {"content": content, "refusal": None}
    text, calls = text_of(choice), choice.tool_calls
    message = _Message(
        "assistant",
        # Where it only calls tools it says nothing.
        None if calls and not text else text,
        reasoning_content=UNSET if choice.reasoning is None else choice.reasoning,
        tool_calls=[_tool_call(call) for call in calls] if calls else UNSET,
    )
    return _ChatChoice(
        index, message, logprobs, choice.finish_reason.value, _form_fault(choice.form_fault)
    )


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _form_fault(fault: str | None) -> str | UnsetType:
    return UNSET if fault is None else fault


def _text_choice(answer: Answer, index: int, choice: Choice) -> _TextChoice:
    logprobs = None
    if choice.logprobs is not None:
        scores = answer.generation.prompt_logprobs
        prompt = () if scores is None else tuple(zip(answer.prompt_ids, scores, strict=True))
        logprobs = text_logprobs(
            prompt,
            choice.logprobs,
            answer.names,
            text=text_of(choice),
            alternatives=answer.request.sampling.logprobs or 0,
        )
    return _TextChoice(
        index, text_of(choice), logprobs, choice.finish_reason.value, _form_fault(choice.form_fault)
    )
