"""How fast a job goes, from its progress as it comes in."""

from collections import deque
from dataclasses import dataclass

# Counts arrive in steps of a checkpoint: the window holds several, and forgets a slow start.
_WINDOW_S = 15.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Lines and output tokens a second, and the seconds still to go; None while unknown."""

    lines_s: float | None = None
    tok_s: float | None = None
    eta_s: float | None = None


class Rates:
    """The rate over the last seconds, fed with the counts and the time (seconds) they were seen."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int, int]] = deque()
        self._settled: Rate | None = None

    def settle(self, rate: Rate) -> None:
        """The rate is known and does not change any more."""
        self._settled = rate

    def take(self, now_s: float, n_ended: int, n_tokens: int) -> None:
        """Counts so far. A count that went back (a retry) starts anew."""
        if self._seen and n_ended < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now_s, n_ended, n_tokens))
        # The newest sample that is older than the window stays: it is where the window begins.
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._window_s:
            self._seen.popleft()

    def rate(self, now_s: float, n_open: int) -> Rate:
        """The rate up to now; it falls while nothing comes in."""
        if self._settled is not None:
            return self._settled
        if len(self._seen) < 2:
            return Rate()
        start_s, ended, tokens = self._seen[0]
        _, last_ended, last_tokens = self._seen[-1]
        elapsed_s = now_s - start_s
        if elapsed_s <= 0 or last_ended == ended:
            return Rate()
        lines_s = (last_ended - ended) / elapsed_s
        return Rate(lines_s, (last_tokens - tokens) / elapsed_s, n_open / lines_s)
