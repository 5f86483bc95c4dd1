"""From one input line to a request, or to the failure that OpenAI would answer.

Nearly all lines take the fast way: one typed decode. The others are looked at again with Python's
own JSON reader, which keeps lone surrogates and huge numbers, to name precisely what is wrong with
them or to drop what asks for nothing.
"""

import json
from typing import Any, TypeVar

import msgspec

from batchgen.domain.errors import InvalidRequest, UnknownOption
from batchgen.domain.jobs import Fault
from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import Endpoint, GenerationRequest, Prompt, SamplingParams
from batchgen.formats.faults import printable, read_object, shown
from batchgen.formats.openai.bodies import (
    IGNORED,
    NEUTRAL,
    ChatBody,
    CompletionBody,
    Message,
)
from batchgen.formats.openai.convert import convert
from batchgen.formats.openai.prompts import chat_prompt, completion_prompt
from batchgen.formats.openai.sampling import chat_sampling, completion_sampling

B = TypeVar("B", ChatBody, CompletionBody)


class _ChatLine(msgspec.Struct):
    custom_id: str
    body: ChatBody


class _CompletionLine(msgspec.Struct):
    custom_id: str
    body: CompletionBody


_decode_chat = msgspec.json.Decoder(_ChatLine).decode
_decode_completion = msgspec.json.Decoder(_CompletionLine).decode


def parse_line(
    raw: bytes, *, index: int, line: int, endpoint: str, max_output_tokens: int = 1_000_000
) -> GenerationRequest | Failed:
    """The request on a line of a validated file, or why it cannot run (status 400).

    `index` counts the job's requests from 0, `line` the file's physical lines from 1;
    `max_output_tokens` is the most that a request may ask for.
    """
    try:
        match Endpoint(endpoint):
            case Endpoint.CHAT_COMPLETIONS:
                custom_id, prompt, sampling = _read_chat(raw, line, max_output_tokens)
            case Endpoint.COMPLETIONS:
                custom_id, prompt, sampling = _read_completion(raw, line, max_output_tokens)
    except InvalidRequest as error:
        return Failed(400, error.code, error.message, error.param)
    except RecursionError:
        return Failed(400, "invalid_json_line", "the line is nested too deeply")
    return GenerationRequest(custom_id, index, line, Endpoint(endpoint), prompt, sampling)


def _read_chat(raw: bytes, line: int, most: int) -> tuple[str, Prompt, SamplingParams]:
    try:
        read = _decode_chat(raw)
    except (msgspec.MsgspecError, RecursionError):
        custom_id, body = _read_carefully(raw, line, ChatBody)
        return custom_id, chat_prompt(body), chat_sampling(body, most)
    return read.custom_id, chat_prompt(read.body), chat_sampling(read.body, most)


def _read_completion(raw: bytes, line: int, most: int) -> tuple[str, Prompt, SamplingParams]:
    try:
        read = _decode_completion(raw)
    except (msgspec.MsgspecError, RecursionError):
        custom_id, body = _read_carefully(raw, line, CompletionBody)
        return custom_id, completion_prompt(body), completion_sampling(body, most)
    return read.custom_id, completion_prompt(read.body), completion_sampling(read.body, most)


def _read_carefully(raw: bytes, line: int, kind: type[B]) -> tuple[str, B]:
    value = read_object(raw, line)
    if isinstance(value, Fault):
        raise InvalidRequest(value.message, code=value.code, param=value.param)
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not isinstance(body, dict):
        raise InvalidRequest("the line has no custom_id or no body", code="invalid_json_line")
    meaningful = _meaningful(body, kind)
    for name, given in meaningful.items():
        _refuse_lone_surrogates(name, given)
    if isinstance(messages := meaningful.get("messages"), list):
        meaningful["messages"] = [
            convert(message, Message, at=f"messages[{i}]") for i, message in enumerate(messages)
        ]
    return custom_id, convert(meaningful, kind)


def _meaningful(body: dict[str, Any], kind: type[B]) -> dict[str, Any]:
    """The body without what changes nothing. Raises InvalidRequest for what is not supported."""
    known, neutral = kind.__struct_fields__, NEUTRAL[kind]
    out = {}
    for name, value in body.items():
        if name in IGNORED and name in known:
            continue
        if name in known:
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
