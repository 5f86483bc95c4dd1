"""From one input line to a request, or to the failure that OpenAI would answer.

Nearly all lines take the fast way: one typed decode. The others are looked at again with Python's
own JSON reader, which keeps lone surrogates and huge numbers, to name precisely what is wrong with
them or to drop what asks for nothing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from batchgen.domain.errors import InvalidRequest, UnknownOption
from batchgen.domain.jobs import Fault
from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import Endpoint, GenerationRequest, Grammar, SamplingParams
from batchgen.formats.faults import printable, read_object, shown
from batchgen.formats.openai.bodies import (
    IGNORED,
    NEUTRAL,
    Body,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    Message,
    ResponsesBody,
)
from batchgen.formats.openai.convert import convert
from batchgen.formats.openai.embeddings import embedding_input
from batchgen.formats.openai.parsed import Parsed
from batchgen.formats.openai.prompts import chat_prompt, completion_prompt
from batchgen.formats.openai.response_chat import as_chat, mirrored
from batchgen.formats.openai.response_format import answer_form
from batchgen.formats.openai.sampling import (
    COMPLETION_MAX_TOKENS,
    chat_sampling,
    completion_sampling,
)
from batchgen.formats.openai.tools import tools_of


class _ChatLine(msgspec.Struct):
    custom_id: str
    body: ChatBody


class _ResponsesLine(msgspec.Struct):
    custom_id: str
    body: ResponsesBody


class _CompletionLine(msgspec.Struct):
    custom_id: str
    body: CompletionBody


_decode_chat = msgspec.json.Decoder(_ChatLine).decode
_decode_completion = msgspec.json.Decoder(_CompletionLine).decode
_decode_response = msgspec.json.Decoder(_ResponsesLine).decode


def parse_line(
    raw: bytes, *, index: int, line: int, endpoint: str, max_output_tokens: int = 1_000_000
) -> GenerationRequest | Failed:
    """The request on a line of a validated file, or why it cannot run (status 400).

    `index` counts the job's requests from 0, `line` the file's physical lines from 1;
    `max_output_tokens` is the most that a request may ask for.
    """
    try:
        found = _READERS[Endpoint(endpoint)](raw, line, max_output_tokens)
    except InvalidRequest as error:
        return Failed(400, error.code, error.message, error.param)
    except RecursionError:
        return Failed(400, "invalid_json_line", "the line is nested too deeply")
    return GenerationRequest(
        found.custom_id,
        index,
        line,
        Endpoint(endpoint),
        found.prompt,
        found.sampling,
        found.answer,
        found.default_max_tokens,
        found.mirrored,
    )


def _read_chat(raw: bytes, line: int, most: int) -> Parsed:
    try:
        read = _decode_chat(raw)
    except (msgspec.MsgspecError, RecursionError):
        custom_id, body = _read_carefully(raw, line)
        return _chat(custom_id, _chat_body(body), most)
    return _chat(read.custom_id, read.body, most)


def _chat(custom_id: str, body: ChatBody, most: int) -> Parsed:
    tools, choice = tools_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    grammar, answer = answer_form(body.response_format, body.structured_outputs)
    if grammar is not None and choice is not None:
        raise InvalidRequest(
            f"Unsupported parameter: '{grammar.param}' cannot be combined with tools that may be "
            'called; say "tool_choice": "none", or leave one of them out.',
            code="unsupported_parameter",
            param=grammar.param,
        )
    if choice is not None:
        answer = replace(answer, tools=choice)
    sampling = _held(chat_sampling(body, most), grammar)
    return Parsed(custom_id, chat_prompt(body, tools), sampling, answer)


def _read_completion(raw: bytes, line: int, most: int) -> Parsed:
    try:
        read = _decode_completion(raw)
    except (msgspec.MsgspecError, RecursionError):
        custom_id, body = _read_carefully(raw, line)
        return _completion(
            custom_id, convert(_meaningful(body, CompletionBody), CompletionBody), most
        )
    return _completion(read.custom_id, read.body, most)


def _completion(custom_id: str, body: CompletionBody, most: int) -> Parsed:
    grammar, answer = answer_form(None, body.structured_outputs)
    return Parsed(
        custom_id,
        completion_prompt(body),
        _held(completion_sampling(body, most), grammar),
        answer,
        default_max_tokens=COMPLETION_MAX_TOKENS,
    )


def _read_embeddings(raw: bytes, line: int, _most: int) -> Parsed:
    custom_id, body = _read_carefully(raw, line)
    wanted = embedding_input(convert(_meaningful(body, EmbeddingBody), EmbeddingBody))
    return Parsed(custom_id, wanted, SamplingParams())


def _held(sampling: SamplingParams, grammar: Grammar | None) -> SamplingParams:
    return sampling if grammar is None else replace(sampling, grammar=grammar)


def _read_response(raw: bytes, line: int, most: int) -> Parsed:
    """A response is asked for as a chat in other words: it is read as that chat."""
    try:
        read = _decode_response(raw)
        custom_id, body = read.custom_id, read.body
    except (msgspec.MsgspecError, RecursionError):
        custom_id, given = _read_carefully(raw, line)
        body = convert(_meaningful(given, ResponsesBody), ResponsesBody)
    chat = as_chat(body)
    try:
        parsed = _chat(custom_id, _as_chat_body(chat.body), most)
    except InvalidRequest as error:
        raise chat.in_its_words(error) from None
    return replace(parsed, mirrored=mirrored(body))


_READERS: Mapping[Endpoint, Callable[[bytes, int, int], Parsed]] = {
    Endpoint.CHAT_COMPLETIONS: _read_chat,
    Endpoint.COMPLETIONS: _read_completion,
    Endpoint.RESPONSES: _read_response,
    Endpoint.EMBEDDINGS: _read_embeddings,
}


def _read_carefully(raw: bytes, line: int) -> tuple[str, dict[str, Any]]:
    value = read_object(raw, line)
    if isinstance(value, Fault):
        raise InvalidRequest(value.message, code=value.code, param=value.param)
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not isinstance(body, dict):
        raise InvalidRequest("the line has no custom_id or no body", code="invalid_json_line")
    return custom_id, body


def _as_chat_body(body: dict[str, Any]) -> ChatBody:
    try:
        return msgspec.convert(body, ChatBody)
    except msgspec.ValidationError:
        return _chat_body(body)


def _chat_body(body: dict[str, Any]) -> ChatBody:
    meaningful = _meaningful(body, ChatBody)
    if isinstance(messages := meaningful.get("messages"), list):
        meaningful["messages"] = [
            convert(message, Message, at=f"messages[{i}]") for i, message in enumerate(messages)
        ]
    return convert(meaningful, ChatBody)


def _meaningful(body: dict[str, Any], kind: type[Body]) -> dict[str, Any]:
    """The body without what changes nothing. Raises InvalidRequest for what is not supported."""
    known, neutral, ignored = kind.__struct_fields__, NEUTRAL[kind], IGNORED[kind]
    out = {}
    for name, value in body.items():
        if name in ignored:
            continue
        if name in known:
            _refuse_lone_surrogates(name, value)
            out[name] = value
        elif name not in neutral:
            unknown = UnknownOption.named(printable(name), known)
            raise InvalidRequest(unknown.message, code="unknown_parameter", param=unknown.param)
        elif value is not None and not _is_one_of(value, neutral[name]):
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' (here {shown(value)}) is not supported.",
                code="unsupported_parameter",
                param=name,
            )
    return out


def _is_one_of(value: object, neutral: tuple[object, ...]) -> bool:
    # By type as well: to Python 1 == True.
    return any(type(value) is type(n) and value == n for n in neutral)


def _refuse_lone_surrogates(name: str, value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"Invalid '{name}': it holds half of a surrogate pair, which is no Unicode text.",
            code="invalid_unicode",
            param=name,
        ) from None
