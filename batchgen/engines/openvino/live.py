"""One request in the pipeline: what has been read of it, and when its tokens came."""

from dataclasses import dataclass, field
from typing import Any

import openvino_genai as genai

from batchgen.domain.outcomes import Choice, FinishReason, Timings, TokenLogprob
from batchgen.engines.protocol import EngineRequest

_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class _Output:
    """One sequence's tokens so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: Any = genai.GenerationFinishReason.NONE

    def add(self, read: Any) -> None:
        self.ids += read.generated_ids
        self.logprobs += read.generated_log_probs
        self.finish_reason = read.finish_reason


@dataclass(slots=True, eq=False)
class Live:
    """A request that waits or runs; the pipeline generates at most `limit` of the `asked` tokens.

    `handle` is None until the pipeline has it. `was_alone`: the pipeline gave up on it though there
    was nothing else. Times are monotonic nanoseconds.
    """

    request: EngineRequest
    limit: int
    asked: int
    t_enq: int
    t_adm: int = 0
    handle: Any = None
    was_alone: bool = False
    _outputs: dict[int, _Output] = field(default_factory=dict)

    @property
    def scores_prompt(self) -> bool:
        """Whether the pipeline gives its prompt back, with logprobs."""
        return self.request.sampling.scores_prompt

    def begun(self) -> bool:
        """Whether it has generated a token, and so has its whole prompt in the cache."""
        return bool(self._outputs) or (self.handle is not None and self.handle.can_read())

    def drain(self) -> int:
        """Read all that it has generated, once it has ended; returns how many tokens that is.

        One sequence comes in one call; of several, each piece says whose it is.
        """
        if self.request.sampling.n == 1 and self.handle.can_read():
            for read in self.handle.read_all():
                self._outputs.setdefault(0, _Output()).add(read)
        while self.handle.can_read():
            for sequence, read in self.handle.read().items():
                self._outputs.setdefault(sequence, _Output()).add(read)
        n_echoed = self._n_echoed()
        return sum(len(output.ids[n_echoed:]) for output in self._outputs.values())

    def forget(self) -> None:
        """Begin anew: nothing of what the pipeline made counts."""
        self.handle = None
        self._outputs.clear()

    def choices(self) -> tuple[Choice, ...]:
        asked, n_echoed = self.request.sampling.logprobs, self._n_echoed()
        return tuple(
            _choice(output, asked, n_echoed) for _, output in sorted(self._outputs.items())
        )

    def prompt_logprobs(self) -> tuple[float | None, ...] | None:
        """Of each prompt token but the first; None where nobody asked.

        Raises RuntimeError where the pipeline has not told as many as there are tokens.
        """
        if not self.scores_prompt or self.request.sampling.logprobs is None:
            return None
        output, n_in = min(self._outputs.items())[1], self._n_echoed()
        if len(output.logprobs) != len(output.ids):
            raise RuntimeError(
                f"the pipeline gave {len(output.logprobs)} logprobs for {len(output.ids)} tokens"
            )
        # Each is of its token given those before it; the first has a placeholder.
        return (None, *output.logprobs[1:n_in])

    def _n_echoed(self) -> int:
        """How many ids of each output are the prompt's own."""
        return len(self.request.prompt_ids) if self.scores_prompt else 0

    def timings(self) -> Timings:
        """The pipeline stamps tokens in milliseconds of the same monotonic clock."""
        stamps = self._raw_metrics().m_new_token_times
        if not stamps:
            return Timings(self.t_enq, self.t_adm)
        first = max(self.t_adm, int(stamps[0] * _NS_PER_MS))
        return Timings(self.t_enq, self.t_adm, first, max(first, int(stamps[-1] * _NS_PER_MS)))

    def step_sizes(self) -> list[int]:
        """How many tokens each step gave it."""
        return [int(size) for size in self._raw_metrics().m_batch_sizes]

    def _raw_metrics(self) -> Any:
        return self.handle.get_perf_metrics().raw_metrics


def _choice(output: _Output, asked_logprobs: int | None, n_echoed: int) -> Choice:
    logprobs = None
    ids, scores = output.ids[n_echoed:], output.logprobs[n_echoed:]
    if asked_logprobs is not None:
        # With temperature 0 the chosen token is the likeliest: the one alternative there is.
        logprobs = tuple(
            TokenLogprob(id_, logprob, ((id_, logprob),) if asked_logprobs else ())
            for id_, logprob in zip(ids, scores, strict=True)
        )
    length = output.finish_reason == genai.GenerationFinishReason.LENGTH
    return Choice(
        token_ids=tuple(ids),
        finish_reason=FinishReason.LENGTH if length else FinishReason.STOP,
        logprobs=logprobs,
    )
