"""In which order prompts go to an engine that keeps the KV blocks of earlier ones.

Prompts that begin alike run next to each other, so that the blocks of their common beginning are
still there. Where one beginning is done with and another must be chosen, one with a request far
longer than most goes first, so that no long request is left for the end. All others keep the order
in which they came, so that the shards of a plain job end one after the other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from batchgen.domain.ids import JobId

T = TypeVar("T")

TOKEN_BYTES = 4
# A request is long from so many times the median length on.
_LONG = 2
_LEAF = 1 << 62
_FOREMOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A request that waits: its prompt as token ids of `TOKEN_BYTES` each, and its `length` in
    tokens, prompt and longest answer together. `n_bytes` is what it takes of memory.
    """

    item: T
    job: JobId
    prompt: bytes
    length: int
    n_bytes: int
    priority: int = 0
    ordered: bool = True


@dataclass(slots=True)
class _Node(Generic[T]):
    """What shares its first `depth` blocks. `entry` is set in leaves.

    `length` is that of the longest request below, 0 where none is long.
    """

    depth: int
    length: int = 0
    arrival: int = _LEAF
    entry: Entry[T] | None = None
    below: list["_Node[T]"] = field(default_factory=list)

    def adopt(self, node: "_Node[T]") -> None:
        self.below.append(node)
        self.length = max(self.length, node.length)
        self.arrival = min(self.arrival, node.arrival)


def arranged(
    entries: Sequence[Entry[T]], *, after: bytes = b"", block_tokens: int
) -> list[Entry[T]]:
    """The entries by common prefix, in whole KV blocks, long ones early.

    It begins with what shares most with the prompt `after`, the last one that ran. The order is a
    walk through the tree of common prefixes (an LCP-interval tree: Abouelhoda, Kurtz & Ohlebusch
    2004), at each fork first to where the longest of the long requests is, then to where the first
    one is that came.
    """
    if not entries:
        return []
    long = _LONG * sorted(entry.length for entry in entries)[len(entries) // 2]
    leaves = [
        _Node(_LEAF, entry.length if entry.length >= long else 0, arrival, entry)
        for arrival, entry in enumerate(entries)
    ]
    # A leaf that goes before all others, and takes those along that share its beginning.
    ran = _Node[T](_LEAF, _FOREMOST, -1)
    keyed = [(leaf.entry.prompt, leaf) for leaf in leaves if leaf.entry is not None]
    keyed.append((after, ran))
    keyed.sort(key=lambda pair: pair[0])
    return list(_walk(_tree(keyed, block_tokens * TOKEN_BYTES)))


def _tree(keyed: Sequence[tuple[bytes, _Node[T]]], block_bytes: int) -> _Node[T]:
    """Of leaves in the order of their prompts."""
    path = [_Node[T](0)]
    before = b""
    for prompt, leaf in keyed:
        _close(path, _common_blocks(before, prompt, block_bytes))
        path.append(leaf)
        before = prompt
    _close(path, 0)
    return path[0]


def _close(path: list[_Node[T]], depth: int) -> None:
    """End what is deeper than `depth` on the way from the root to the newest leaf."""
    while path[-1].depth > depth:
        node = path.pop()
        if path[-1].depth < depth:
            path.append(_Node(depth))
        path[-1].adopt(node)


def _walk(root: _Node[T]) -> Iterable[Entry[T]]:
    to_come = [root]
    while to_come:
        node = to_come.pop()
        if node.entry is not None:
            yield node.entry
        # The last one is taken first.
        to_come += sorted(node.below, key=lambda below: (below.length, -below.arrival))


def _common_blocks(one: bytes, other: bytes, block_bytes: int) -> int:
    """How many whole blocks two prompts have in common from the beginning."""
    low, high = 0, min(len(one), len(other)) // block_bytes
    while low < high:
        middle = (low + high + 1) // 2
        part = slice(low * block_bytes, middle * block_bytes)
        if one[part] == other[part]:
            low = middle
        else:
            high = middle - 1
    return low
