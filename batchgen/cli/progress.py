"""A job's progress on standard error: a live bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from batchgen.cli.rates import Rate, Rates
from batchgen.cli.render import note, rounded, span

_LINE_EVERY_S = 10.0
_AT_WORK = frozenset({"running", "finalizing", "completed"})


class Display(Protocol):
    """Where progress is shown."""

    def show(self, progress: Mapping[str, Any], whole: Rate | None = None, /) -> None:
        """The job's `state`, `counts` and `usage` as they are now; with the rate of the `whole`
        job where it has ended.
        """
        ...

    def say(self, text: str, /) -> None:
        """A text that stays, above the progress."""
        ...


class Silent:
    """For --quiet."""

    def show(self, _progress: Mapping[str, Any], _whole: Rate | None = None, /) -> None:
        return

    def say(self, _text: str, /) -> None:
        return


class Lines:
    """For a log: a line when the state changes, and every ten seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._rates = Rates()
        self._state = ""
        self._shown_at = 0.0

    def show(self, progress: Mapping[str, Any], whole: Rate | None = None, /) -> None:
        now = self._monotonic()
        counts = progress["counts"]
        take(self._rates, now, progress, whole)
        state = str(progress["state"])
        if state == self._state and now - self._shown_at < _LINE_EVERY_S:
            return
        self._state, self._shown_at = state, now
        parts = [state, f"{n_ended(counts):,}/{counts['total']:,}"]
        if counts["failed"]:
            parts.append(f"{counts['failed']:,} failed")
        parts += words_of(self._rates, now, state, counts["open"])
        note("  ".join(parts))

    def say(self, text: str) -> None:
        note(text)


def display(*, quiet: bool) -> AbstractContextManager[Display]:
    """What suits standard error."""
    if quiet:
        return _no_cleanup(Silent())
    return _bar() if sys.stderr.isatty() else _no_cleanup(Lines())


def take(
    rates: Rates, now_s: float, progress: Mapping[str, Any], whole: Rate | None = None
) -> None:
    rates.take(now_s, n_ended(progress["counts"]), progress["usage"]["output_tokens"])
    if whole is not None:
        rates.settle(whole)


def n_ended(counts: Mapping[str, int]) -> int:
    return counts["completed"] + counts["failed"]


def words_of(rates: Rates, now_s: float, state: str, n_open: int) -> list[str]:
    """The rate in words, as far as it is known; none where lines end without having been run."""
    if state not in _AT_WORK:
        return []
    rate = rates.rate(now_s, n_open)
    words = []
    if rate.lines_s is not None:
        words.append(f"{rounded(rate.lines_s)} lines/s")
    if rate.tok_s is not None:
        words.append(f"{rounded(rate.tok_s)} tok/s")
    if rate.eta_s is not None and rate.eta_s > 0:
        words.append(f"ETA {span(rate.eta_s)}")
    return words


@contextmanager
def _no_cleanup(shown: Display) -> Iterator[Display]:
    yield shown


@contextmanager
def _bar() -> Iterator[Display]:
    from batchgen.cli.bar import Bar

    with Bar() as bar:
        yield bar
