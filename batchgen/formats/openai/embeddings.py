"""/v1/embeddings: what a request wants, and its answer's body."""

import base64
import math
import sys
from array import array

import msgspec

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.outcomes import Embedding
from batchgen.domain.requests import EmbeddingInput
from batchgen.formats.openai.bodies import EmbeddingBody

MOST_TEXTS = 2048
"""Texts in one request, as OpenAI has it."""


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class _Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    model: str
    usage: _Usage
    object: str = "list"


def embedding_input(body: EmbeddingBody) -> EmbeddingInput:
    """What is wanted. Raises InvalidRequest."""
    given = body.input
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise InvalidRequest("'input' must be a text or a list of texts", param="input")
    if any(isinstance(item, int | list) and not isinstance(item, bool) for item in given):
        raise InvalidRequest(
            "'input' holds token ids: the engine tokenizes by itself, so give it texts",
            code="unsupported_parameter",
            param="input",
        )
    if not all(isinstance(item, str) for item in given):
        raise InvalidRequest("'input' must be a text or a list of texts", param="input")
    if len(given) > MOST_TEXTS:
        raise InvalidRequest(
            f"'input' holds {len(given)} texts; at most {MOST_TEXTS} go into one request",
            param="input",
        )
    if any(not text for text in given):
        raise InvalidRequest("'input' holds an empty text", code="empty_prompt", param="input")
    if body.encoding_format not in {None, "float", "base64"}:
        raise InvalidRequest(
            f"'encoding_format' must be float or base64, not '{body.encoding_format}'",
            param="encoding_format",
        )
    if body.dimensions is not None and body.dimensions < 1:
        raise InvalidRequest("'dimensions' must be at least 1", param="dimensions")
    return EmbeddingInput(tuple(given), body.dimensions, body.encoding_format == "base64")


def embeddings(wanted: EmbeddingInput, made: Embedding, *, model: str) -> msgspec.Struct:
    """The answer's body. Raises InvalidRequest where more dimensions are wanted than there are.

    Fewer dimensions are the vector's first ones, scaled to its length again, as is done with models
    that were trained for it (Kusupati et al., Matryoshka Representation Learning, 2022).
    """
    data = [
        _Vector(index, _written(_cut(_vector(raw), wanted.dimensions), wanted))
        for index, raw in enumerate(made.vectors)
    ]
    return _Embeddings(data, model, _Usage(made.n_in, made.n_in))


def _cut(vector: "array[float]", dimensions: int | None) -> "array[float]":
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise InvalidRequest(
            f"'dimensions' asks for {dimensions} numbers, the model's vectors have {len(vector)}",
            param="dimensions",
        )
    kept = vector[:dimensions]
    length = math.hypot(*kept)
    scale = math.hypot(*vector) / length if length else 1.0
    return array("f", (number * scale for number in kept))


def _vector(raw: bytes) -> "array[float]":
    vector = array("f")
    vector.frombytes(raw)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def _written(vector: "array[float]", wanted: EmbeddingInput) -> list[float] | str:
    if not wanted.as_base64:
        return vector.tolist()
    if sys.byteorder == "big":
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
