"""How a request line ends: a closed union, matched exhaustively."""

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class Timings:
    """One request's events, in nanoseconds of the machine's monotonic clock.

    `t_enq` given to the engine, `t_adm` first scheduled, `t_first` first output token, `t_last`
    last output token; None where the engine cannot tell or nothing was generated.
    """

    t_enq: int
    t_adm: int | None = None
    t_first: int | None = None
    t_last: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token's log-probability (natural log) and its most likely alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for; `arguments` is the JSON text that it wrote."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One continuation. `text` is None until the token ids have been decoded.

    `reasoning` is what a thinking model thought, apart from its text, and `n_reasoning` how many of
    its tokens that took; None where the model does not think. `form_fault` says why the text does
    not have the form that was asked for.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    text: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    n_reasoning: int | None = None
    form_fault: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine made of one request. Counts are of engine token ids; `n_out` sums the choices.

    `n_drafted` and `n_accepted` count speculative tokens, None where there was no speculation.
    `prompt_logprobs` has one for each prompt token, None for the first, which nothing predicts; it
    is None itself where nobody asked for them.
    """

    choices: tuple[Choice, ...]
    n_in: int
    n_cached: int | None
    n_out: int
    timings: Timings
    n_drafted: int | None = None
    n_accepted: int | None = None
    prompt_logprobs: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """What an embedding model made of one request: a vector of little-endian float32 a text."""

    vectors: tuple[bytes, ...]
    n_in: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Completed:
    """The line ends in the output file."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Failed:
    """The line ends in the error file, with the status and error that OpenAI would give."""

    status_code: int
    code: str
    message: str
    param: str | None = None


class CutReason(StrEnum):
    CANCELLED = "batch_cancelled"
    EXPIRED = "batch_expired"


@dataclass(frozen=True, slots=True)
class Cut:
    """The line was never finished; it ends in the error file and says why."""

    reason: CutReason


Outcome = Completed | Failed | Cut
