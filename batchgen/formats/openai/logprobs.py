"""Log-probabilities as the endpoints show them, tokens by their text and bytes."""

import codecs
import math
from collections.abc import Callable, Sequence
from typing import Any

from batchgen.domain.outcomes import TokenLogprob

TokenBytes = Callable[[int], bytes]

# JSON has no infinities; this is what the API gives for "as good as impossible".
_IMPOSSIBLE = -9999.0
# Characters that a tokenizer may have changed, before the next token is found in the text again.
_MOST_SKIPPED = 8
_ONE_HALF = math.log(0.5)


def chat_logprobs(tokens: Sequence[TokenLogprob], names: TokenBytes) -> list[dict[str, Any]]:
    """One object a token, with its alternatives."""
    return [
        {
            **_named(token.token_id, token.logprob, names),
            "top_logprobs": [_named(id_, logprob, names) for id_, logprob in token.top],
        }
        for token in tokens
    ]


def text_logprobs(
    prompt: Sequence[tuple[int, float | None]],
    tokens: Sequence[TokenLogprob],
    names: TokenBytes,
    *,
    text: str,
    alternatives: int,
) -> dict[str, Any]:
    """Lists beside each other, of the prompt's tokens (where it is echoed) and the answer's.

    Nothing predicts a prompt's first token: its logprob is None. The engines tell no alternatives
    of a prompt's token, so where the likeliest are asked for a token of over one half is its own,
    and beside any other there is null. `text` is what the offsets point into.
    """
    raws = [names(id_) for id_, _ in prompt] + [names(token.token_id) for token in tokens]
    scores = [logprob for _, logprob in prompt] + [token.logprob for token in tokens]
    return {
        "tokens": [_distinct(raw) for raw in raws],
        "token_logprobs": [None if score is None else _finite(score) for score in scores],
        "top_logprobs": [
            *(_certain(id_, logprob, names, alternatives) for id_, logprob in prompt),
            *(_tops(token, names) for token in tokens),
        ],
        "text_offset": _offsets(raws, text),
    }


def _offsets(raws: Sequence[bytes], text: str) -> list[int]:
    """Where each token begins in the text, in characters.

    A character may take several tokens; a control token takes no place where the text leaves it
    out, nor does a space that the tokenizer put before the first word.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets, at = [], 0
    for raw in raws:
        offsets.append(at)
        piece = decoder.decode(raw)
        if piece and not text.startswith(piece, at) and text.startswith(piece[1:], at):
            piece = piece[1:] if piece[0] == " " else piece
        if piece and (found := text.find(piece, at, at + len(piece) + _MOST_SKIPPED)) >= 0:
            offsets[-1], at = found, found + len(piece)
    return offsets


def _certain(
    token_id: int, logprob: float | None, names: TokenBytes, alternatives: int
) -> dict[str, float] | None:
    if logprob is None or (alternatives and logprob <= _ONE_HALF):
        return None
    return {_distinct(names(token_id)): _finite(logprob)}


def _named(token_id: int, logprob: float, names: TokenBytes) -> dict[str, Any]:
    raw = names(token_id)
    return {"token": _shown(raw), "logprob": _finite(logprob), "bytes": list(raw)}


def _tops(token: TokenLogprob, names: TokenBytes) -> dict[str, float]:
    return {
        _distinct(names(token_id)): _finite(logprob)
        for token_id, logprob in (*token.top, (token.token_id, token.logprob))
    }


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
