"""Requests that ask for a grammar wait here until it is known to compile."""

from collections.abc import Collection
from pathlib import Path

from batchgen.engines.openvino.grammars import GrammarChecks
from batchgen.engines.openvino.live import Live
from batchgen.engines.protocol import Finished

# With nothing to run, a step waits so long for a verdict; longer ones look like a hung engine.
_WAIT_S = 0.25


class GrammarGate:
    """Lets through what the pipeline may have; the running batch never waits for it."""

    def __init__(self, model_dir: Path) -> None:
        self._checks = GrammarChecks(model_dir)
        self._waiting: list[Live] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, live: Live) -> None:
        self._waiting.append(live)

    def open(self, *, wait: bool) -> tuple[list[Live], list[Finished]]:
        """Those whose grammars are fine, and those that end because theirs is not."""
        fine: list[Live] = []
        refused: list[Finished] = []
        if not self._waiting:
            return fine, refused
        self._ask()
        self._checks.hear(_WAIT_S if wait and not self._any_known() else 0.0)
        still: list[Live] = []
        for live in self._waiting:
            grammar = live.request.sampling.grammar
            if grammar is not None and not self._checks.knows(grammar):
                still.append(live)
                continue
            failure = None if grammar is None else self._checks.failure(grammar)
            if failure is None:
                fine.append(live)
            else:
                refused.append(Finished(id=live.request.id, failure=failure))
        self._waiting = still
        return fine, refused

    def drop(self, ids: Collection[int]) -> list[int]:
        """These are cancelled; returns the ids that were here."""
        dropped = [live.request.id for live in self._waiting if live.request.id in ids]
        if dropped:
            self._waiting = [live for live in self._waiting if live.request.id not in ids]
        return dropped

    def close(self) -> None:
        self._waiting.clear()
        self._checks.close()

    def _ask(self) -> None:
        for live in self._waiting:
            grammar = live.request.sampling.grammar
            if grammar is not None and not self._checks.knows(grammar):
                self._checks.ask(grammar)

    def _any_known(self) -> bool:
        grammars = (live.request.sampling.grammar for live in self._waiting)
        return any(grammar is None or self._checks.knows(grammar) for grammar in grammars)
