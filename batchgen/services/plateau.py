"""Throughput while the running batch was nearly full, from requests in any order, in bounded
memory.
"""

from dataclasses import dataclass

# The running batch counts as full from this share of its largest size on.
FULL = 0.9
# Times are gathered in so many bins at least, once there are more of them: a bin is then at most a
# 8,192nd part of the whole span, and the batch's size in it is its mean there.
BINS = 8_192


@dataclass(slots=True)
class _Bin:
    """What changes within a bin: by how much in all, and what that adds up to until its end."""

    running: int = 0
    running_ns: int = 0
    rate: float = 0.0
    tokens: float = 0.0


class Plateau:
    """Takes requests one by one. Times are nanoseconds of one clock."""

    def __init__(self) -> None:
        self._bins: dict[int, _Bin] = {}
        self._shift = 0  # a bin is 2**shift ns

    def add(self, admitted: int, first: int, last: int, n_out: int) -> None:
        """A request that ran from `admitted` to `last`; its tokens are taken as evenly spread
        between its first and its last.
        """
        self._at(admitted, running=1, rate=0.0)
        if last > first:
            rate = n_out / (last - first)
            self._at(first, running=0, rate=rate)
            self._at(last, running=-1, rate=-rate)
        else:
            self._at(last, running=-1, rate=0.0)

    def rate(self) -> float | None:
        """Output tokens a nanosecond while the batch was full; None where no time passed in it."""
        pieces = list(self._pieces())
        if not pieces:
            return None
        least = FULL * max(running for _, running, _ in pieces)
        full = [(ns, tokens) for ns, running, tokens in pieces if running >= least]
        return sum(tokens for _, tokens in full) / sum(ns for ns, _ in full)

    def _pieces(self) -> "list[tuple[int, float, float]]":
        """(length in ns, running requests, tokens) of each stretch, bins and what is between."""
        width = 1 << self._shift
        pieces: list[tuple[int, float, float]] = []
        running, rate, before = 0, 0.0, 0
        for key in sorted(self._bins):
            change, start = self._bins[key], key << self._shift
            if pieces and start > before:
                pieces.append((start - before, running, rate * (start - before)))
            mean = running + change.running_ns / width
            pieces.append((width, mean, rate * width + change.tokens))
            running += change.running
            rate += change.rate
            before = start + width
        return pieces

    def _at(self, t: int, *, running: int, rate: float) -> None:
        key = t >> self._shift
        found = self._bins.get(key)
        if found is None:
            if len(self._bins) >= 2 * BINS:
                self._widen()
                key = t >> self._shift
            found = self._bins.setdefault(key, _Bin())
        left = ((key + 1) << self._shift) - t
        found.running += running
        found.running_ns += running * left
        found.rate += rate
        found.tokens += rate * left

    def _widen(self) -> None:
        """Join neighbours until there are few bins again."""
        while len(self._bins) > BINS:
            width, wider = 1 << self._shift, dict[int, _Bin]()
            for key, old in self._bins.items():
                new = wider.setdefault(key >> 1, _Bin())
                # What changed in the left half goes on through the right one.
                more = 0 if key & 1 else width
                new.running += old.running
                new.running_ns += old.running_ns + old.running * more
                new.rate += old.rate
                new.tokens += old.tokens + old.rate * more
            self._bins = wider
            self._shift += 1
