"""Sampling parameters of OpenAI bodies, within their bounds, or refused by name."""

from dataclasses import replace

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.requests import SamplingParams
from batchgen.formats.faults import shown
from batchgen.formats.openai.bodies import ChatBody, CompletionBody

COMPLETION_MAX_TOKENS = 16  # the API's own default
_MAX_N = 128
_MAX_SEED = 2**63 - 1
_MAX_STOPS = 16
_MAX_STOP_CHARS = 512
_MAX_STOP_IDS = 128
_MAX_TOP_LOGPROBS = 20
_MAX_COMPLETION_LOGPROBS = 5


def chat_sampling(body: ChatBody, max_output_tokens: int) -> SamplingParams:
    """Raises InvalidRequest. Without a limit of its own a chat may fill the model's length."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "Setting 'max_tokens' and 'max_completion_tokens' to different values makes no sense.",
            param="max_tokens",
        )
    name = "max_tokens" if new is None else "max_completion_tokens"
    limit = old if new is None else new
    return _sampling(body, limit, name, _chat_logprobs(body), max_output_tokens)


def completion_sampling(body: CompletionBody, max_output_tokens: int) -> SamplingParams:
    """Raises InvalidRequest. Only an echoed prompt may be all that is asked for."""
    if body.max_tokens is None:
        most = min(COMPLETION_MAX_TOKENS, max_output_tokens)
        _whole("min_tokens", body.min_tokens, 0, most)
    logprobs = _whole("logprobs", body.logprobs, 0, _MAX_COMPLETION_LOGPROBS)
    echo = bool(body.echo)
    least = 0 if echo else 1
    sampling = _sampling(
        body, body.max_tokens, "max_tokens", logprobs, max_output_tokens, least=least
    )
    return replace(sampling, echo=echo)


def _sampling(
    body: ChatBody | CompletionBody,
    limit: int | None,
    limit_name: str,
    logprobs: int | None,
    max_output_tokens: int,
    *,
    least: int = 1,
) -> SamplingParams:
    max_tokens = _whole(limit_name, limit, least, max_output_tokens)
    most = max_output_tokens if max_tokens is None else max_tokens
    min_tokens = _whole("min_tokens", body.min_tokens, 0, most)
    top_k = _whole("top_k", body.top_k, -1, 2**31 - 1)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens or 0,
        temperature=_real("temperature", body.temperature, 0.0, 2.0, default=1.0),
        top_p=_above_zero("top_p", body.top_p, 1.0, default=1.0),
        top_k=0 if top_k is None else max(top_k, 0),
        min_p=_real("min_p", body.min_p, 0.0, 1.0, default=0.0),
        presence_penalty=_real("presence_penalty", body.presence_penalty, -2.0, 2.0, default=0.0),
        frequency_penalty=_real(
            "frequency_penalty", body.frequency_penalty, -2.0, 2.0, default=0.0
        ),
        repetition_penalty=_above_zero(
            "repetition_penalty", body.repetition_penalty, 10.0, default=1.0
        ),
        n=_whole("n", body.n, 1, _MAX_N) or 1,
        seed=_whole("seed", body.seed, 0, _MAX_SEED),
        stop=_stops(body.stop),
        stop_token_ids=_stop_ids(body.stop_token_ids),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
    )


def _chat_logprobs(body: ChatBody) -> int | None:
    top = _whole("top_logprobs", body.top_logprobs, 0, _MAX_TOP_LOGPROBS)
    if not body.logprobs:
        if top:
            raise InvalidRequest(
                "Invalid 'top_logprobs': it needs 'logprobs' to be true.", param="top_logprobs"
            )
        return None
    return top or 0


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > _MAX_STOPS:
        raise InvalidRequest(
            f"Invalid 'stop': array too long. Expected at most {_MAX_STOPS}, got {len(stops)}.",
            code="array_above_max_length",
            param="stop",
        )
    for text in stops:
        if not text:
            raise InvalidRequest(
                "Invalid 'stop': an empty string stops nothing.", code="empty_string", param="stop"
            )
        if len(text) > _MAX_STOP_CHARS:
            raise InvalidRequest(
                f"Invalid 'stop': string too long. Expected at most {_MAX_STOP_CHARS} characters.",
                code="string_above_max_length",
                param="stop",
            )
    return stops


def _stop_ids(ids: list[int] | None) -> tuple[int, ...]:
    if not ids:
        return ()
    if len(ids) > _MAX_STOP_IDS:
        raise InvalidRequest(
            f"Invalid 'stop_token_ids': array too long. Expected at most {_MAX_STOP_IDS}.",
            code="array_above_max_length",
            param="stop_token_ids",
        )
    for id_ in ids:
        _whole("stop_token_ids", id_, 0, 2**31 - 1)
    return tuple(ids)


def _whole(name: str, value: int | None, low: int, high: int) -> int | None:
    if value is None or low <= value <= high:
        return value
    if value < low:
        raise _beyond(name, "integer", f">= {low}", value)
    raise _beyond(name, "integer", f"<= {high}", value)


def _real(name: str, value: float | None, low: float, high: float, *, default: float) -> float:
    if value is None:
        return default
    if low <= value <= high:
        return value
    if value < low:
        raise _beyond(name, "decimal", f">= {low:g}", value)
    raise _beyond(name, "decimal", f"<= {high:g}", value)


def _above_zero(name: str, value: float | None, high: float, *, default: float) -> float:
    if value is not None and value <= 0:
        raise _beyond(name, "decimal", "> 0", value)
    return _real(name, value, 0.0, high, default=default)


def _beyond(name: str, kind: str, bound: str, value: float) -> InvalidRequest:
    side, which = ("above", "maximum") if bound.startswith("<") else ("below", "minimum")
    return InvalidRequest(
        f"Invalid '{name}': {kind} {side} {which} value. Expected a value {bound}, but got "
        f"{shown(value)} instead.",
        code=f"{kind}_{side}_{which[:3]}_value",
        param=name,
    )
