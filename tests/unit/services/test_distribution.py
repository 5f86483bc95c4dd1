"""Quantiles of few numbers are exact, of many nearly so, and memory is bounded either way."""

import math
import random

import pytest

from batchgen.services.distribution import EXACT, RELATIVE_ERROR, Distribution, quantile


def of(values: list[float]) -> dict[str, object]:
    made = Distribution()
    for value in values:
        made.add(value)
    return made.summary("ms", none="nothing")


def test_quantiles_are_linear_between_neighbours() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([7.0], 0.99) == 7.0
    assert math.isclose(quantile([0.0, 10.0], 0.9), 9.0)


def test_few_numbers_are_taken_exactly() -> None:
    values = [random.Random(1).random() for _ in range(EXACT)]
    found = of(values)
    assert found["relative_error"] == 0
    assert found["p99"] == quantile(sorted(values), 0.99)
    assert found["mean"] == pytest.approx(math.fsum(values) / EXACT)


@pytest.mark.parametrize("shape", ["lognormal", "two heaps", "zeros and large", "one value"])
def test_quantiles_of_many_numbers_are_within_the_error_that_is_stated(shape: str) -> None:
    chance = random.Random(2)
    n = 2 * EXACT + 17
    values = {
        "lognormal": [chance.lognormvariate(3, 2) for _ in range(n)],
        "two heaps": [chance.choice((1e-6, 1e6)) * (1 + chance.random()) for _ in range(n)],
        "zeros and large": [chance.choice((0.0, 5e8)) for _ in range(n)],
        "one value": [math.pi] * n,
    }[shape]
    found = of(values)
    ordered = sorted(values)
    assert found["n"] == n
    assert found["relative_error"] == RELATIVE_ERROR
    assert (found["min"], found["max"]) == (ordered[0], ordered[-1])
    assert found["mean"] == pytest.approx(math.fsum(values) / n, rel=1e-12)
    for name, q in {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}.items():
        assert found[name] == pytest.approx(quantile(ordered, q), rel=RELATIVE_ERROR * 1.001)
    low, high = found["p95_ci95"]  # type: ignore[misc] - JSON
    assert low <= found["p95"] <= high


def test_nothing_says_why() -> None:
    assert of([])["reason"] == "nothing"
    assert of([])["p50"] is None
