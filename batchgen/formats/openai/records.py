"""What a line becomes: a record of the output or of the error file, one JSON line each.

Whoever splits these files at anything that some program takes for a line end gets whole records:
line ends inside strings are always escaped, U+2028, U+2029 and U+0085 among them.
"""

import json
import math
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from batchgen.domain.outcomes import Choice, Cut, CutReason, Failed, Generation, TokenLogprob
from batchgen.domain.requests import Endpoint, GenerationRequest

_encode = msgspec.json.Encoder().encode
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
# JSON has no infinities; this is what the API gives for "as good as impossible".
_IMPOSSIBLE = -9999.0
_CUT_MESSAGES = {
    CutReason.CANCELLED: "The batch was cancelled before this request was finished.",
    CutReason.EXPIRED: "The batch expired before this request was finished.",
}

TokenBytes = Callable[[int], bytes]


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: Any


class _Record(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: dict[str, str] | None


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
    choices: list[_ChatChoice | _TextChoice]
    usage: _Usage
    system_fingerprint: str | None


def output_line(
    request: GenerationRequest,
    generation: Generation,
    *,
    model: str,
    created: int,
    token_bytes: TokenBytes | None = None,
    fingerprint: str | None = None,
) -> bytes:
    """The output record of a completed request, ending in a newline.

    Every choice must have its text. `created` is in seconds since 1970, `fingerprint` names the
    engine; `token_bytes` gives a token's bytes and is needed where there are logprobs.
    """
    number = secrets.token_hex(16)
    choice_of: Callable[[int, Choice, TokenBytes | None], _ChatChoice | _TextChoice]
    match request.endpoint:
        case Endpoint.CHAT_COMPLETIONS:
            prefix, kind, choice_of = "chatcmpl", "chat.completion", _chat_choice
        case Endpoint.COMPLETIONS:
            prefix, kind, choice_of = "cmpl", "text_completion", _text_choice
    body = _Completion(
        id=f"{prefix}-{number}",
        object=kind,
        created=created,
        model=model,
        choices=[
            choice_of(index, choice, token_bytes) for index, choice in enumerate(generation.choices)
        ],
        usage=_usage(generation),
        system_fingerprint=fingerprint,
    )
    return encode_line(
        _Record(_record_id(number), request.custom_id, _Response(200, number, body), None)
    )


def error_line(custom_id: str | None, failed: Failed) -> bytes:
    """The error record of a request that cannot run; `custom_id` None where it cannot be read."""
    number = secrets.token_hex(16)
    error = {
        "message": failed.message,
        "type": "invalid_request_error" if failed.status_code < 500 else "server_error",
        "param": failed.param,
        "code": failed.code,
    }
    response = _Response(failed.status_code, number, {"error": error})
    return encode_line(_Record(_record_id(number), custom_id, response, None))


def cut_line(custom_id: str | None, cut: Cut) -> bytes:
    """The error record of a request that was never finished."""
    error = {"code": cut.reason.value, "message": _CUT_MESSAGES[cut.reason]}
    return encode_line(_Record(_record_id(secrets.token_hex(16)), custom_id, None, error))


def encode_line(record: msgspec.Struct) -> bytes:
    """One line of JSON, ending in the only newline in it. Lone surrogates are escaped."""
    try:
        out = _encode(record)
    except UnicodeEncodeError:
        out = json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode()
    if not out.isascii():
        # UTF-8 never holds these bytes but as these characters, and those only inside strings.
        for raw, escaped in _LINE_ENDS:
            out = out.replace(raw, escaped)
    return out + b"\n"


def _record_id(number: str) -> str:
    return f"batch_req_{number}"


def _usage(generation: Generation) -> _Usage:
    cached = generation.n_cached
    return _Usage(
        prompt_tokens=generation.n_in,
        completion_tokens=generation.n_out,
        total_tokens=generation.n_in + generation.n_out,
        prompt_tokens_details=None if cached is None else {"cached_tokens": cached},
    )


def _chat_choice(index: int, choice: Choice, token_bytes: TokenBytes | None) -> _ChatChoice:
    logprobs = None
    if choice.logprobs is not None:
        names = _names(token_bytes)
        content = [_chat_token(token, names) for token in choice.logprobs]
        logprobs = {"content": content, "refusal": None}
    message = _Message("assistant", _text(choice))
    return _ChatChoice(index, message, logprobs, choice.finish_reason.value)


def _chat_token(token: TokenLogprob, names: TokenBytes) -> dict[str, Any]:
    top = [_named(token_id, logprob, names) for token_id, logprob in token.top]
    return {**_named(token.token_id, token.logprob, names), "top_logprobs": top}


def _named(token_id: int, logprob: float, names: TokenBytes) -> dict[str, Any]:
    raw = names(token_id)
    return {"token": _shown(raw), "logprob": _finite(logprob), "bytes": list(raw)}


def _text_choice(index: int, choice: Choice, token_bytes: TokenBytes | None) -> _TextChoice:
    logprobs = None
    if choice.logprobs is not None:
        logprobs = _text_logprobs(choice.logprobs, _names(token_bytes))
    return _TextChoice(index, _text(choice), logprobs, choice.finish_reason.value)


def _text_logprobs(tokens: tuple[TokenLogprob, ...], names: TokenBytes) -> dict[str, Any]:
    raws = [names(token.token_id) for token in tokens]
    offsets, at = [], 0
    for raw in raws:
        offsets.append(at)
        at += len(_shown(raw))
    tops = [
        {
            _distinct(names(token_id)): _finite(logprob)
            for token_id, logprob in (*token.top, (token.token_id, token.logprob))
        }
        for token in tokens
    ]
    return {
        "tokens": [_distinct(raw) for raw in raws],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _names(token_bytes: TokenBytes | None) -> TokenBytes:
    if token_bytes is None:
        raise ValueError("records with logprobs need the tokens' bytes")
    return token_bytes


def _shown(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _distinct(raw: bytes) -> str:
    # This endpoint keys alternatives by their text and spells out what is no text by itself.
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE


def _text(choice: Choice) -> str:
    if choice.text is None:
        raise ValueError("a choice's tokens must be decoded before it becomes a record")
    return choice.text
