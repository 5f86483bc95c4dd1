"""What a stream of numbers was like, in bounded memory: mean, extremes, quantiles, intervals.

Up to `EXACT` numbers all are kept. Beyond, they are counted in buckets whose bounds grow by a
constant ratio (DDSketch: Masson, Rim, Lee, VLDB 2019), so that each quantile is off by at most
`RELATIVE_ERROR` of itself, whatever the numbers are; mean, minimum and maximum stay exact.
"""

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

EXACT = 50_000
RELATIVE_ERROR = 0.001
_QUANTILES = (0.50, 0.90, 0.95, 0.99)
# Below these sizes the order statistics give no two-sided 95 % interval.
_LEAST_FOR_INTERVAL = {0.95: 72, 0.99: 367}

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BUCKETS_A_LOG = 1 / math.log(_GROWTH)
# What is smaller counts as nothing: no duration or rate here comes near it.
_LEAST = 1e-12
_NOTHING = math.floor(math.log(_LEAST) * _BUCKETS_A_LOG) - 1


class Distribution:
    """Takes numbers one by one. None of them is negative."""

    def __init__(self) -> None:
        self._buffer = array("d")
        self._buckets: Counter[int] = Counter()
        self._n = 0
        self._sum = 0.0
        self._min, self._max = math.inf, -math.inf

    def add(self, value: float) -> None:
        self._buffer.append(value)
        if len(self._buffer) > EXACT:
            self._count()

    def summary(self, unit: str, *, none: str) -> dict[str, Any]:
        """JSON: n, mean, min, max, quantiles and their intervals; `none` says why there is
        nothing. `relative_error` is how far a quantile may be off, as a share of itself.
        """
        if not self._n and not self._buffer:
            empty = dict.fromkeys(("mean", "min", "max", *map(_name, _QUANTILES)))
            return {"unit": unit, "n": 0, **empty, "reason": none}
        counted = self._n > 0
        self._sum = math.fsum(chain((self._sum,), self._buffer))
        ordered = self._ordered()
        n = len(ordered)
        out: dict[str, Any] = {
            "unit": unit,
            "n": n,
            "mean": self._sum / n,
            "min": ordered[0],
            "max": ordered[n - 1],
            "reason": None,
            "relative_error": RELATIVE_ERROR if counted else 0.0,
        }
        for q in _QUANTILES:
            out[_name(q)] = quantile(ordered, q)
        for q, least in _LEAST_FOR_INTERVAL.items():
            out[f"{_name(q)}_ci95"] = quantile_interval(ordered, q) if n >= least else None
        return out

    def _ordered(self) -> "Sequence[float]":
        if not self._n:
            return sorted(self._buffer)
        self._count(summed=True)
        return _Counted(self._buckets, self._min, self._max)

    def _count(self, *, summed: bool = False) -> None:
        values, self._buffer = self._buffer, array("d")
        if not values:
            return
        if not summed:
            self._sum = math.fsum(chain((self._sum,), values))
        self._n += len(values)
        self._min = min(self._min, *values)
        self._max = max(self._max, *values)
        self._buckets.update(map(_bucket, values))


class _Counted(Sequence[float]):
    """Numbers that were counted in buckets, as if sorted: each stands for those of its bucket."""

    def __init__(self, buckets: Counter[int], lowest: float, highest: float) -> None:
        self._keys = sorted(buckets)
        self._ends = list(accumulate(buckets[key] for key in self._keys))
        self._lowest, self._highest = lowest, highest

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: Any) -> Any:
        if place == 0:
            return self._lowest
        if place == len(self) - 1:
            return self._highest
        key = self._keys[bisect_right(self._ends, place)]
        value = 0.0 if key == _NOTHING else 2 * _GROWTH**key / (_GROWTH + 1)
        return min(max(value, self._lowest), self._highest)


def _bucket(value: float) -> int:
    return math.ceil(math.log(value) * _BUCKETS_A_LOG) if value > _LEAST else _NOTHING


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, linear between the neighbours (Hyndman & Fan 1996, type
    7).
    """
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def quantile_interval(ordered: Sequence[float], q: float) -> tuple[float, float]:
    """A 95 % interval of the q-quantile by order statistics (Conover 1999, normal
    approximation).
    """
    n = len(ordered)
    spread = 1.959964 * math.sqrt(n * q * (1 - q))
    low = max(math.floor(n * q - spread), 0)
    high = min(math.ceil(n * q + spread), n - 1)
    return ordered[low], ordered[high]


def _name(q: float) -> str:
    return f"p{q * 100:.0f}"
