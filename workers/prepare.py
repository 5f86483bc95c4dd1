"""From a line of the input to a request that an engine takes, or to its error; and back to
records.
"""

import time
from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from batchgen.chat.encoder import PromptEncoder
from batchgen.domain.errors import InvalidRequest
from batchgen.domain.ids import SessionId
from batchgen.domain.jobs import ClaimedShard, Usage
from batchgen.domain.outcomes import Choice, Embedding, Failed, Generation
from batchgen.domain.requests import (
    ChatPrompt,
    EmbeddingInput,
    Endpoint,
    GenerationRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
)
from batchgen.engines.protocol import Applied, EngineRequest
from batchgen.engines.registry import refusal
from batchgen.engines.spec import EngineSpec
from batchgen.formats import openai
from batchgen.formats.jsonl import RequestLine
from batchgen.formats.validate import custom_id_of
from batchgen.services.records import Record
from workers.answers import Answers

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can run: its token ids, and its sampling with every default filled in.

    `text` is the prompt for engines that see images; the ids then stand for it and its images. Many
    of them wait at a time: the ids take four bytes each.
    """

    request: GenerationRequest
    prompt_ids: "array[int]"
    sampling: SamplingParams
    text: str | None = None

    def for_engine(self, request_id: int) -> EngineRequest:
        ids, prompt = self.prompt_ids.tolist(), self.request.prompt
        texts = list(prompt.texts) if isinstance(prompt, EmbeddingInput) else None
        images = list(prompt.images) if isinstance(prompt, ChatPrompt) else []
        return EngineRequest(
            id=request_id,
            prompt_ids=ids,
            sampling=self.sampling,
            texts=texts,
            text=self.text,
            images=images,
        )


class Preparer(ABC):
    """Knows the tokenizer and the limits of one loaded engine.

    What is wrong with one request is a value and ends its line only, whatever went wrong.
    """

    def prepare(self, shard: ClaimedShard, line: RequestLine) -> Prepared | Failed:
        """The request on a line, or why it cannot run."""
        try:
            return self._prepare(shard, line)
        except Exception as error:
            # A template or a tokenizer may raise anything; its line must not take others with it.
            log.exception("line_not_prepared", job=shard.job_id, index=line.index)
            return _unexpected("read", error)

    def output(
        self, shard: ClaimedShard, prepared: Prepared, made: Generation | Embedding
    ) -> tuple[Record, Usage]:
        """The output line, its timing line and its share of the usage; or its error line, where
        nobody can make an answer of what the engine made.
        """
        try:
            return self._output(shard, prepared, made)
        except Exception as error:
            request = prepared.request
            log.exception("answer_not_written", job=shard.job_id, index=request.index)
            return error_record(request, _unexpected("answered", error)), Usage()

    @abstractmethod
    def _prepare(self, shard: ClaimedShard, line: RequestLine) -> Prepared | Failed: ...

    @abstractmethod
    def _output(
        self, shard: ClaimedShard, prepared: Prepared, made: Generation | Embedding
    ) -> tuple[Record, Usage]: ...


class GenerationPreparer(Preparer):
    """For engines that generate text."""

    def __init__(
        self,
        spec: EngineSpec,
        applied: Applied,
        *,
        max_output_tokens: int,
        session_id: SessionId | None = None,
    ) -> None:
        self._spec = spec
        self._max_model_len = applied.max_model_len
        self._image_tag, self._image_tokens = applied.image_tag, applied.image_tokens
        self._max_output_tokens = max_output_tokens
        self._session_id = session_id
        self._encoder = PromptEncoder(None if spec.path is None else Path(spec.path))
        self._answers = Answers(spec, self._encoder)

    def _prepare(self, shard: ClaimedShard, line: RequestLine) -> Prepared | Failed:
        request = openai.parse_line(
            line.raw,
            index=line.index,
            line=line.line,
            endpoint=shard.endpoint,
            max_output_tokens=self._max_output_tokens,
        )
        if isinstance(request, Failed):
            return request
        try:
            request = self._answers.hold(request)
            refused = refusal(self._spec, request.sampling)
            if refused is not None:
                return openai.in_own_words(request.endpoint, refused)
            ids, text = self._prompt(request.prompt)
        except InvalidRequest as error:
            failed = Failed(400, error.code, error.message, error.param)
            return openai.in_own_words(request.endpoint, failed)
        return self._within_limits(request, ids, text)

    def _prompt(self, prompt: Prompt) -> tuple[list[int], str | None]:
        """Its ids, and its text where the engine wants that. Raises InvalidRequest."""
        if self._image_tag is None:
            return self._encoder.encode(prompt), None
        n_images = len(prompt.images) if isinstance(prompt, ChatPrompt) else 0
        if (seen := n_images * self._image_tokens) >= self._max_model_len:
            # Said before so much is made: a line has room for thousands of small files.
            raise InvalidRequest(
                f"{n_images} images take {seen} tokens, the model takes {self._max_model_len} in "
                "all: leave some out",
                code="context_length_exceeded",
                param="prompt",
            )
        text = bare = self._encoder.write(prompt, self._image_tag)
        for number in range(n_images):
            bare = bare.replace(self._image_tag.replace("{}", str(number)), "", 1)
        ids = self._encoder.tokenizer.encode(bare, add_special_tokens=False)
        return ids + [0] * seen, text

    def _output(
        self, shard: ClaimedShard, prepared: Prepared, made: Generation | Embedding
    ) -> tuple[Record, Usage]:
        if not isinstance(made, Generation):
            raise TypeError("a generating engine made an embedding")
        choices = []
        for raw in made.choices:
            choice = self._answers.read(
                prepared.request, prepared.sampling, prepared.prompt_ids, raw
            )
            if isinstance(choice, Failed):
                return error_record(prepared.request, choice), Usage()
            choices.append(self._echoed(prepared, choice) if prepared.sampling.echo else choice)
        decoded = replace(made, choices=tuple(choices))
        line = openai.output_line(
            prepared.request,
            decoded,
            model=shard.model,
            created=int(time.time()),
            token_bytes=self._encoder.tokenizer.token_bytes,
            fingerprint=shard.engine_fingerprint,
            prompt_ids=prepared.prompt_ids,
        )
        n_reasoning = sum(choice.n_reasoning or 0 for choice in decoded.choices)
        usage = Usage(decoded.n_in, decoded.n_cached or 0, decoded.n_out, n_reasoning)
        timing = openai.timing_line(prepared.request, decoded, self._session_id)
        return Record(prepared.request.index, line, timing), usage

    def _echoed(self, prepared: Prepared, choice: Choice) -> Choice:
        prompt = prepared.request.prompt
        given = (
            prompt.text
            if isinstance(prompt, TextPrompt)
            else self._encoder.decode(prepared.prompt_ids)
        )
        return replace(choice, text=given + (choice.text or ""))

    def _within_limits(
        self, request: GenerationRequest, ids: list[int], text: str | None
    ) -> Prepared | Failed:
        room, asked = self._max_model_len - len(ids), request.sampling.max_tokens
        if room < 1:
            return Failed(
                400,
                "context_length_exceeded",
                f"the prompt has {len(ids)} tokens, the model takes {self._max_model_len} with the "
                "answer: shorten it",
                openai.own_name(request.endpoint, "prompt"),
            )
        if asked is not None and asked > room:
            name = openai.own_name(request.endpoint, "max_tokens")
            return Failed(
                400,
                "context_length_exceeded",
                f"the prompt has {len(ids)} tokens and {name} asks for {asked}; the model "
                f"takes {self._max_model_len} in all: ask for at most {room}",
                name,
            )
        if asked is None:
            asked = min(room, request.default_max_tokens or room)
        sampling = replace(request.sampling, max_tokens=asked)
        return Prepared(request, array("i", ids), sampling, text)


def _unexpected(what: str, error: Exception) -> Failed:
    message = f"the request cannot be {what}: {type(error).__name__}; the worker's log says where"
    return Failed(500, "internal_error", message)


def error_record(request: GenerationRequest, failed: Failed) -> Record:
    """The error line of a request that ran in vain."""
    return Record(request.index, openai.error_line(request.custom_id, failed))


def failed_record(line: RequestLine, failed: Failed, endpoint: Endpoint | None = None) -> Record:
    """The error line of a request that cannot run; `endpoint` says in whose words."""
    if endpoint is not None:
        failed = openai.in_own_words(endpoint, failed)
    return Record(line.index, openai.error_line(custom_id_of(line.raw), failed))
