"""Throughput of the full batch: exact for few requests, in bounded memory for many."""

import pytest

from batchgen.services.plateau import BINS, Plateau


def test_without_requests_there_is_no_rate() -> None:
    assert Plateau().rate() is None


def test_ramp_and_tail_are_left_out() -> None:
    made = Plateau()
    for _ in range(10):
        made.add(0, 0, 100, 11)
    made.add(0, 0, 1_000, 101)
    assert made.rate() == pytest.approx((10 * 11 + 101 / 10) / 100, rel=0.02)


def test_requests_come_in_any_order_and_before_the_first() -> None:
    orders = [[(1_000, 1_100), (0, 100), (1_000, 1_100)], [(0, 100), (1_000, 1_100)] * 2]
    for order in orders:
        made = Plateau()
        for start, end in order[:3]:
            made.add(start, start, end, 50)
        assert made.rate() is not None


def test_tokens_that_come_all_at_once_do_not_count_as_a_rate() -> None:
    made = Plateau()
    made.add(0, 50, 50, 8)
    assert made.rate() == 0


def test_many_requests_are_gathered_and_the_rate_stays() -> None:
    # Eight places, each taken again at once: 0.8 tokens a microsecond, for a million of them.
    made, length = Plateau(), 800_000
    for place in range(8):
        for n in range(5_000):
            start = place * 100_003 + n * length
            made.add(start, start, start + length, 80)
    assert len(made._bins) <= 2 * BINS
    assert made.rate() == pytest.approx(8 * 80 / length, rel=0.005)
