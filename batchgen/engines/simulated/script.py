"""What the simulated engine says and does to a request: its output, and a scripted deed."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from batchgen.chat.tokenizer import Tokenizer
from batchgen.domain.outcomes import FinishReason
from batchgen.domain.requests import SamplingParams
from batchgen.engines.spec import Rule


@dataclass(frozen=True, slots=True)
class Output:
    """A request's output, and how many steps it takes."""

    ids: tuple[int, ...]
    finish_reason: FinishReason
    steps: int


class Counted:
    """A rule and how often it may still act."""

    def __init__(self, rule: Rule):
        self.rule = rule
        self.left = math.inf if rule.times is None else rule.times


@dataclass(frozen=True, slots=True)
class Deed:
    """A scripted deed, due when `after_steps` of the request's steps are done."""

    counted: Counted
    after_steps: int

    @property
    def rule(self) -> Rule:
        return self.counted.rule

    def take(self) -> bool:
        """Count the deed as done; False where its `times` are used up."""
        if self.counted.left <= 0:
            return False
        self.counted.left -= 1
        return True


class Script:
    """The rules of one engine."""

    def __init__(self, rules: Sequence[Rule], tokenizer: Tokenizer):
        self._rules = [Counted(rule) for rule in rules]
        self._tokenizer = tokenizer

    def plan(
        self, prompt: Sequence[int], sampling: SamplingParams, limit: int
    ) -> tuple[Output, Deed | None]:
        """A request's output, at most `limit` tokens, and the first deed that applies to it."""
        text, factor, deed = None, 1.0, None
        for counted in self._matching(prompt):
            rule = counted.rule
            if rule.action == "answer":
                if text is None and Deed(counted, 0).take():
                    text = rule.text
            elif rule.action == "slow":
                if Deed(counted, 0).take():
                    factor *= rule.factor
            elif deed is None and counted.left > 0:
                deed = Deed(counted, math.ceil(rule.after_tokens * factor))
        ids, finish = self._output(prompt, text, sampling, limit)
        return Output(ids, finish, math.ceil(len(ids) * factor)), deed

    def _matching(self, prompt: Sequence[int]) -> list[Counted]:
        if not self._rules:
            return []
        text = self._tokenizer.decode(prompt)
        return [counted for counted in self._rules if counted.rule.contains in text]

    def _output(
        self, prompt: Sequence[int], answer: str | None, sampling: SamplingParams, limit: int
    ) -> tuple[tuple[int, ...], FinishReason]:
        source = prompt
        if answer is not None:
            source = [*self._tokenizer.encode(answer, add_special_tokens=False)]
            source += self._tokenizer.eos_ids[:1]
        ends = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends.update(self._tokenizer.eos_ids)
        ids = tuple(source) * -(-limit // len(source)) if source else ()
        ids = ids[:limit]
        if not ends.isdisjoint(ids):
            for at, token in enumerate(ids):
                if token in ends and at >= sampling.min_tokens:
                    # The token that stops is generated, and counted, but is no text.
                    return self._at_stop_string(ids[: at + 1], sampling, FinishReason.STOP)
        return self._at_stop_string(ids, sampling, FinishReason.LENGTH)

    def _at_stop_string(
        self, ids: tuple[int, ...], sampling: SamplingParams, otherwise: FinishReason
    ) -> tuple[tuple[int, ...], FinishReason]:
        """Cut after the token that completes a stop string."""
        if sampling.stop:
            whole = self._tokenizer.decode(ids)
            if any(stop in whole for stop in sampling.stop):
                for end in range(max(1, sampling.min_tokens), len(ids) + 1):
                    text = self._tokenizer.decode(ids[:end])
                    if any(stop in text for stop in sampling.stop):
                        return ids[:end], FinishReason.STOP
        return ids, otherwise


def hang() -> NoReturn:
    """Never return, as a wedged driver call."""
    while True:
        time.sleep(3600)
