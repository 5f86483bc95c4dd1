"""The simulated KV cache: what is shared, what is kept, and when there is no room."""

from hypothesis import given
from hypothesis import strategies as st

from batchgen.engines.simulated.block_pool import KV_BLOCK_TOKENS, BlockPool, Held


def prompt(*blocks: int) -> list[int]:
    """Blocks full of one token each, and one token more."""
    return [token for block in blocks for token in [block] * KV_BLOCK_TOKENS] + [0]


def blocks_of(ids: list[int]) -> int:
    return -(-len(ids) // KV_BLOCK_TOKENS)


def cached(pool: BlockPool, ids: list[int]) -> int:
    held = pool.take(ids, blocks_of(ids))
    assert held is not None
    pool.give_back(held)
    return held.cached_tokens // KV_BLOCK_TOKENS


def test_what_begins_alike_is_there_from_the_second_on() -> None:
    pool = BlockPool(20, caches=True)
    assert [cached(pool, prompt(1, 2, n)) for n in (7, 8, 7)] == [0, 2, 3]


def test_equal_blocks_after_another_beginning_are_others() -> None:
    pool = BlockPool(20, caches=True)
    assert [cached(pool, prompt(n, 5, 5)) for n in (1, 2)] == [0, 0]


def test_the_last_token_is_always_computed() -> None:
    pool = BlockPool(20, caches=True)
    whole = prompt(1, 2)[:-1]
    assert [cached(pool, whole) for _ in range(2)] == [0, 1]


def test_beginnings_that_take_turns_in_a_small_pool_find_nothing() -> None:
    pool = BlockPool(8, caches=True)
    turns = [prompt(n, n, n, 100 + i) for i in range(3) for n in (1, 2, 3)]
    assert [cached(pool, ids) for ids in turns] == [0] * 9
    together = sorted(turns, key=lambda ids: ids[0])
    assert [cached(BlockPool(8, caches=True), ids) for ids in together[:1]] == [0]
    fresh = BlockPool(8, caches=True)
    assert [cached(fresh, ids) for ids in together] == [0, 3, 3, 0, 3, 3, 0, 3, 3]


def test_without_caching_nothing_is_shared() -> None:
    pool = BlockPool(8)
    held = [pool.take(prompt(1, 2), 3) for _ in range(3)]
    assert [h is not None for h in held] == [True, True, False]
    assert pool.used == 6


def test_shared_blocks_are_held_once() -> None:
    pool = BlockPool(8, caches=True)
    held = [pool.take(prompt(1, 2), 3) for _ in range(6)]
    assert all(held)
    assert pool.used == 2 + 6
    assert pool.take(prompt(1, 2), 3) is None


PROMPTS = st.lists(st.integers(0, 2), max_size=5).map(lambda blocks: prompt(*blocks))


@given(st.integers(6, 12), st.lists(st.tuples(PROMPTS, st.booleans()), max_size=60))
def test_no_more_is_held_than_there_is_and_all_of_it_comes_back(
    size: int, deeds: list[tuple[list[int], bool]]
) -> None:
    pool = BlockPool(size, caches=True)
    held: list[Held] = []
    for ids, leaves in deeds:
        got = pool.take(ids, blocks_of(ids))
        assert got is not None or held
        if got is not None:
            held.append(got)
        assert pool.used <= size
        if leaves and held:
            pool.give_back(held.pop(0))
    for one in held:
        pool.give_back(one)
    assert pool.used == 0
    assert pool.peak <= size
