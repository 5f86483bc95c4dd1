"""Lines that want vectors: to requests that an embedding engine takes, and back to records."""

from array import array
from pathlib import Path

from batchgen.chat.encoder import PromptEncoder
from batchgen.domain.errors import InvalidRequest
from batchgen.domain.ids import SessionId
from batchgen.domain.jobs import ClaimedShard, Usage
from batchgen.domain.outcomes import Embedding, Failed, Generation
from batchgen.domain.requests import EmbeddingInput, TextPrompt
from batchgen.engines.protocol import Applied
from batchgen.engines.spec import OpenVinoEmbeddingSpec
from batchgen.formats import openai
from batchgen.formats.jsonl import RequestLine
from batchgen.services.records import Record
from workers.prepare import Prepared, Preparer, error_record


class EmbeddingPreparer(Preparer):
    """Knows the tokenizer and the limits of one loaded embedding engine.

    The engine tokenizes by itself; the tokens here are for the length's and the usage's sake.
    """

    def __init__(
        self, spec: OpenVinoEmbeddingSpec, applied: Applied, *, session_id: SessionId
    ) -> None:
        self._max_model_len = applied.max_model_len
        self._instruction = spec.embed_instruction or ""
        self._session_id = session_id
        self._encoder = PromptEncoder(Path(spec.path))

    def _prepare(self, shard: ClaimedShard, line: RequestLine) -> Prepared | Failed:
        request = openai.parse_line(
            line.raw, index=line.index, line=line.line, endpoint=shard.endpoint
        )
        if isinstance(request, Failed):
            return request
        if not isinstance(request.prompt, EmbeddingInput):
            return Failed(400, "unsupported_endpoint", "This model makes embeddings only.", "url")
        every = array("i")
        for number, text in enumerate(request.prompt.texts):
            try:
                ids = self._encoder.encode(TextPrompt(self._instruction + text))
            except InvalidRequest as error:
                return Failed(400, error.code, error.message, "input")
            if len(ids) > self._max_model_len:
                return Failed(
                    400,
                    "context_length_exceeded",
                    f"input[{number}] has {len(ids)} tokens, the model takes "
                    f"{self._max_model_len}: shorten it",
                    "input",
                )
            every.extend(ids)
        return Prepared(request, every, request.sampling)

    def _output(
        self, shard: ClaimedShard, prepared: Prepared, made: Generation | Embedding
    ) -> tuple[Record, Usage]:
        request = prepared.request
        if not isinstance(made, Embedding):
            raise TypeError("an embedding engine generated text")
        try:
            line = openai.embedding_line(request, made, model=shard.model)
        except InvalidRequest as error:
            failed = Failed(400, error.code, error.message, error.param)
            return error_record(request, failed), Usage()
        as_generation = Generation((), made.n_in, 0, 0, made.timings)
        timing = openai.timing_line(request, as_generation, self._session_id)
        return Record(request.index, line, timing), Usage(made.n_in, 0, 0)
