"""The lines read ahead: each goes to the engine once, none waits for ever, and what begins alike
goes together.
"""

from array import array
from collections.abc import Sequence
from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from batchgen.domain.ids import JobId
from workers.ordering import TOKEN_BYTES, Entry, arranged
from workers.window import Window

BLOCK = 4
# Few tokens and few lengths, so that prompts begin alike at every depth.
PROMPTS = st.lists(st.integers(0, 1), max_size=4 * BLOCK).map(lambda ids: ids * 2)
LENGTHS = st.integers(1, 5)


def entry(item: int, ids: Sequence[int], length: int = 1, **more: object) -> Entry[int]:
    known = {"job": JobId("a"), "n_bytes": len(ids) * TOKEN_BYTES}
    prompt = array("i", ids).tobytes()
    return Entry(item=item, prompt=prompt, length=length, **(known | more))  # type: ignore[arg-type]  # any of its fields


def beginning(one: Entry[int], blocks: int) -> bytes:
    return one.prompt[: blocks * BLOCK * TOKEN_BYTES]


entries = st.lists(st.tuples(PROMPTS, LENGTHS), max_size=40).map(
    lambda drawn: [entry(i, ids, length) for i, (ids, length) in enumerate(drawn)]
)


@given(entries, PROMPTS)
def test_every_line_is_in_the_order_once(given: list[Entry[int]], after: list[int]) -> None:
    out = arranged(given, after=array("i", after).tobytes(), block_tokens=BLOCK)
    assert sorted(e.item for e in out) == [e.item for e in given]


@given(entries, PROMPTS)
def test_what_shares_a_beginning_is_together_at_every_depth(
    given: list[Entry[int]], after: list[int]
) -> None:
    out = arranged(given, after=array("i", after).tobytes(), block_tokens=BLOCK)
    for blocks in range(1, 9):
        whole = [e for e in out if len(e.prompt) >= blocks * BLOCK * TOKEN_BYTES]
        runs = [key for key, _ in groupby(whole, key=lambda e: beginning(e, blocks))]
        assert len(runs) == len(set(runs))


@given(entries)
def test_groups_with_the_longest_of_the_long_begin_and_the_others_keep_their_order(
    given: list[Entry[int]],
) -> None:
    out = arranged(given, block_tokens=BLOCK)
    groups = [list(group) for _, group in groupby(out, key=lambda e: beginning(e, 1))]
    whole = [g for g in groups if len(beginning(g[0], 1)) == BLOCK * TOKEN_BYTES]
    long = 2 * sorted(e.length for e in given)[len(given) // 2] if given else 0
    ranks = [
        (-max((e.length for e in group if e.length >= long), default=0), min(e.item for e in group))
        for group in whole
    ]
    assert ranks == sorted(ranks)


@given(entries, st.integers(0, 39))
def test_the_beginning_that_ran_last_goes_on_first(given: list[Entry[int]], pick: int) -> None:
    known = [e for e in given if len(e.prompt) >= BLOCK * TOKEN_BYTES]
    if not known:
        return
    ran = known[pick % len(known)]
    out = arranged(given, after=ran.prompt, block_tokens=BLOCK)
    assert beginning(out[0], 1) == beginning(ran, 1)


@given(entries)
def test_equal_lines_keep_their_order(given: list[Entry[int]]) -> None:
    out = arranged(given, block_tokens=BLOCK)
    for one, other in pairwise(out):
        if (one.prompt, one.length) == (other.prompt, other.length):
            assert one.item < other.item


TAKE, SETTLE = "take", "settle"
DEEDS = st.one_of(st.tuples(PROMPTS, LENGTHS), st.sampled_from([TAKE, SETTLE]))
STEPS = st.lists(DEEDS, max_size=120)


@given(STEPS, st.integers(1, 12))
def test_no_line_waits_for_more_than_two_windows_and_none_is_lost_or_doubled(
    steps: list[tuple[list[int], int] | str], lines: int
) -> None:
    window = Window[int](lines=lines, n_bytes=1 << 30, block_tokens=BLOCK)
    waits: dict[int, int] = {}
    taken: list[int] = []

    def take() -> bool:
        item = window.take()
        if item is None:
            return False
        assert len(taken) - waits[item] < 2 * lines
        assert len(window) < lines
        taken.append(item)
        return True

    for number, step in enumerate(steps):
        if step == SETTLE:
            window.settle()
        if step == TAKE or window.full:
            take()
        if isinstance(step, tuple):
            waits[number] = len(taken)
            window.add(entry(number, *step))
    while take():
        pass
    assert sorted(taken) == sorted(waits)
    assert len(window) == 0


@given(entries, st.integers(1, 60))
def test_a_window_holds_no_more_bytes_than_it_may_and_one_line(
    given: list[Entry[int]], most: int
) -> None:
    window = Window[int](lines=1_000, n_bytes=most, block_tokens=BLOCK)
    held: dict[int, int] = {}
    for e in given:
        while window.full:
            item = window.take()
            assert item is not None
            del held[item]
        assert sum(held.values()) < most
        window.add(e)
        held[e.item] = e.n_bytes


@given(entries, st.sets(st.integers(0, 39)))
def test_what_was_dropped_is_not_handed_out_and_the_rest_is(
    given: list[Entry[int]], gone: set[int]
) -> None:
    window = Window[int](lines=1_000, n_bytes=1 << 30, block_tokens=BLOCK)
    for e in given:
        window.add(e)
    first = window.take()
    window.drop(lambda item: item in gone)
    rest = []
    while (item := window.take()) is not None:
        rest.append(item)
    assert sorted(rest) == [e.item for e in given if e.item not in gone and e.item != first]


@given(entries)
def test_a_job_that_asks_for_it_keeps_the_order_of_its_input(given: list[Entry[int]]) -> None:
    window = Window[int](lines=1_000, n_bytes=1 << 30, block_tokens=BLOCK)
    for e in given:
        window.add(entry(e.item, array("i", e.prompt), e.length, ordered=False))
    out = [window.take() for _ in given]
    assert out == [e.item for e in given]


def test_what_comes_last_is_put_in_order_with_what_still_waits() -> None:
    window = Window[int](lines=100, n_bytes=1 << 30, block_tokens=BLOCK)
    for i in range(20):
        window.add(entry(i, [0, i]))
    assert window.take() == 0
    window.add(entry(20, [1], length=2))
    window.settle()
    assert window.take() == 20


def test_a_more_urgent_line_goes_before_the_run_under_way() -> None:
    window = Window[int](lines=100, n_bytes=1 << 30, block_tokens=BLOCK)
    for i in range(6):
        window.add(entry(i, [i] * BLOCK))
    assert window.take() == 0
    window.add(entry(9, [9] * BLOCK, job=JobId("b"), priority=1))
    assert window.take() == 9
    assert sorted(window.take() or 0 for _ in range(5)) == [1, 2, 3, 4, 5]
    assert window.take() is None


@given(st.lists(st.one_of(st.tuples(PROMPTS, st.integers(0, 2)), st.just(TAKE)), max_size=60))
def test_nothing_is_taken_while_something_more_urgent_waits(
    steps: list[tuple[list[int], int] | str],
) -> None:
    window = Window[int](lines=100, n_bytes=1 << 30, block_tokens=BLOCK)
    waiting: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            ids, priority = step
            window.add(entry(number, ids, priority=priority))
            waiting[number] = priority
        elif waiting:
            item = window.take()
            assert item is not None
            assert waiting[item] == max(waiting.values())
            del waiting[item]


def test_more_urgent_lines_that_come_while_others_of_them_run_go_before_the_rest_too() -> None:
    window = Window[int](lines=100, n_bytes=1 << 30, block_tokens=BLOCK)
    for i in range(6):
        window.add(entry(i, [i] * BLOCK))
    assert window.take() == 0
    for i in (10, 11):
        window.add(entry(i, [9] * BLOCK, job=JobId("b"), priority=1))
    assert window.take() == 10
    window.add(entry(12, [9] * BLOCK, job=JobId("b"), priority=1))
    assert [window.take() for _ in range(2)] == [11, 12]
