"""One request line, parsed: what shall be generated, and how it is sampled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Endpoint(StrEnum):
    """The OpenAI endpoints whose bodies a job's lines may hold."""

    CHAT_COMPLETIONS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"


class GrammarKind(StrEnum):
    """How a grammar is written; a structural tag is xgrammar's JSON for text with parts in form."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form that the generated text must have; `param` is the request's field that asks it."""

    kind: GrammarKind
    source: str
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen; the names are those of the OpenAI API and of common servers.

    `temperature` 0 is greedy. `max_tokens` None means up to the model's length. `logprobs` is the
    number of alternatives a token (0: the chosen token only; None: no logprobs). `seed` None is
    unseeded. `stop_token_ids` come on top of the model's own end tokens. `grammar` None leaves the
    text free. `echo` puts the prompt before the answer, with the logprobs of both where `logprobs`
    asks for any; only then may `max_tokens` be 0.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None
    echo: bool = False

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt goes through the model for its own sake."""
        return self.echo and (self.logprobs is not None or self.max_tokens == 0)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages to be rendered by the model's chat template, and the tools it shall show.

    `images` are the encoded files of all messages, in order; a part `{"type": "image", "index": n}`
    of a message's content says where one stands.
    """

    messages: tuple[Mapping[str, Any], ...]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text that is tokenized as it stands (its control tokens are the caller's own)."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, ready for the engine."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmbeddingInput:
    """Texts of which vectors are wanted, `dimensions` numbers each (None: as the model has them),
    written as base64 of little-endian float32 or as a list of numbers.
    """

    texts: tuple[str, ...]
    dimensions: int | None = None
    as_base64: bool = False


Prompt = ChatPrompt | TextPrompt | TokenPrompt | EmbeddingInput


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of a request's tools may be called.

    `names` and `schemas` (JSON texts of the arguments) go together. `required`: at least one call,
    and nothing else. `strict`: arguments in the form of their schemas also where a call is not
    required. `parallel`: several calls in one answer.
    """

    names: tuple[str, ...]
    schemas: tuple[str, ...]
    required: bool = False
    strict: bool = False
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the generated text shall be, besides text.

    `json_schema` is what a finished answer must be valid against; where it is not, the line fails
    if `strict`, and is marked otherwise. `tools` None: no tool calls are looked for.
    """

    json_schema: str | None = None
    strict: bool = True
    tools: ToolChoice | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One line of a job's input.

    `index` counts the job's requests from 0, `line` is the physical line in the file from 1.
    `default_max_tokens` is the API's own where the request names none: it is no wish, and gives way
    to the model's length. `mirrored` are fields of the request that its answer repeats.
    """

    custom_id: str
    index: int
    line: int
    endpoint: Endpoint
    prompt: Prompt
    sampling: SamplingParams
    answer: AnswerForm = AnswerForm()
    default_max_tokens: int | None = None
    mirrored: Mapping[str, Any] = field(default_factory=dict)
