"""The answers' bodies of /v1/chat/completions and /v1/completions."""

from typing import Any

import msgspec

from batchgen.domain.outcomes import Choice, Generation
from batchgen.formats.openai.answers import Answer, text_of
from batchgen.formats.openai.logprobs import chat_logprobs, text_logprobs


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None


class _Message(msgspec.Struct):
    role: str
    content: str
    refusal: None = None


class _ChatChoice(msgspec.Struct):
    index: int
    message: _Message
    logprobs: dict[str, Any] | None
    finish_reason: str


class _TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str


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
    return _Usage(
        prompt_tokens=generation.n_in,
        completion_tokens=generation.n_out,
        total_tokens=generation.n_in + generation.n_out,
        prompt_tokens_details=None if cached is None else {"cached_tokens": cached},
    )


def _chat_choice(answer: Answer, index: int, choice: Choice) -> _ChatChoice:
    logprobs = None
    if choice.logprobs is not None:
        content = chat_logprobs(choice.logprobs, answer.names)
        logprobs = {"content": content, "refusal": None}
    message = _Message("assistant", text_of(choice))
    return _ChatChoice(index, message, logprobs, choice.finish_reason.value)


def _text_choice(answer: Answer, index: int, choice: Choice) -> _TextChoice:
    logprobs = None
    if choice.logprobs is not None:
        scores = answer.generation.prompt_logprobs
        prompt = () if scores is None else tuple(zip(answer.prompt_ids, scores, strict=True))
        logprobs = text_logprobs(
            prompt,
            choice.logprobs,
            answer.names,
            alternatives=answer.request.sampling.logprobs or 0,
        )
    return _TextChoice(index, text_of(choice), logprobs, choice.finish_reason.value)
