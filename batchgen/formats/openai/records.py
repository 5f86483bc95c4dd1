"""What a line becomes: a record of the output or of the error file, one JSON line each.

Whoever splits these files at anything that some program takes for a line end gets whole records:
line ends inside strings are always escaped, U+2028, U+2029 and U+0085 among them.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from batchgen.domain.outcomes import Cut, CutReason, Embedding, Failed, Generation
from batchgen.domain.requests import EmbeddingInput, Endpoint, GenerationRequest
from batchgen.formats.openai.answers import Answer
from batchgen.formats.openai.completions import chat_completion, text_completion
from batchgen.formats.openai.embeddings import embeddings
from batchgen.formats.openai.logprobs import TokenBytes
from batchgen.formats.openai.responses import response

_encode = msgspec.json.Encoder().encode
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_CUT_MESSAGES = {
    CutReason.CANCELLED: "The batch was cancelled before this request was finished.",
    CutReason.EXPIRED: "The batch expired before this request was finished.",
}

_BODIES: Mapping[Endpoint, Callable[[Answer], msgspec.Struct]] = {
    Endpoint.CHAT_COMPLETIONS: chat_completion,
    Endpoint.COMPLETIONS: text_completion,
    Endpoint.RESPONSES: response,
}


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: Any


class _Record(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: dict[str, str] | None


def output_line(
    request: GenerationRequest,
    generation: Generation,
    *,
    model: str,
    created: int,
    token_bytes: TokenBytes | None = None,
    fingerprint: str | None = None,
    prompt_ids: Sequence[int] = (),
) -> bytes:
    """The output record of a completed request, ending in a newline.

    Every choice must have its text. `created` is in seconds since 1970, `fingerprint` names the
    engine; `token_bytes` gives a token's bytes and is needed where there are logprobs, and so are
    `prompt_ids` where the prompt has some.
    """
    number = secrets.token_hex(16)
    answer = Answer(
        request, generation, number, model, created, fingerprint, token_bytes, prompt_ids
    )
    body = _BODIES[request.endpoint](answer)
    return encode_line(
        _Record(_record_id(number), request.custom_id, _Response(200, number, body), None)
    )


def embedding_line(request: GenerationRequest, made: Embedding, *, model: str) -> bytes:
    """The output record of a request for vectors, ending in a newline.

    Raises InvalidRequest where it wants what the model's vectors do not have.
    """
    if not isinstance(request.prompt, EmbeddingInput):
        raise TypeError("the request wants no vectors")
    number = secrets.token_hex(16)
    body = embeddings(request.prompt, made, model=model)
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
