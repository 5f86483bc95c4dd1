"""The simulated KV cache: blocks that running requests hold, and blocks kept for prompts that begin
alike.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

KV_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Held:
    """What one request holds: `shared` are full blocks of its prompt, `own` counts the others.

    `cached_tokens` of its prompt were there before it came.
    """

    shared: tuple[Hashable, ...]
    own: int
    cached_tokens: int


class BlockPool:
    """`blocks` None: as many as are asked for, and none is kept.

    With `caches`, full blocks of a prompt are known by what they and all before them hold. They
    stay when their last request leaves, until room is needed: the longest unused goes first.
    """

    def __init__(
        self, blocks: int | None, *, caches: bool = False, block_tokens: int = KV_BLOCK_TOKENS
    ) -> None:
        self._blocks = blocks
        self._block_tokens = block_tokens
        self._caches = caches and blocks is not None
        self._own = 0
        self._users: dict[Hashable, int] = {}
        self._kept: OrderedDict[Hashable, None] = OrderedDict()
        self.peak = 0

    @property
    def used(self) -> int:
        """Blocks that running requests hold."""
        return self._own + len(self._users)

    def take(self, prompt_ids: Sequence[int], blocks: int) -> Held | None:
        """Hold `blocks` blocks for a request, its prompt's among them; None: no room for them."""
        if self._blocks is None:
            return Held((), 0, 0)
        chain = _chain(prompt_ids, self._block_tokens) if self._caches else ()
        known = 0
        while known < len(chain) and (chain[known] in self._users or chain[known] in self._kept):
            known += 1
        shared, own = chain[:blocks], blocks - len(chain[:blocks])
        new_in_use = own + sum(1 for block in shared if block not in self._users)
        if self.used + new_in_use > self._blocks:
            return None
        for block in shared:
            self._kept.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        self._own += own
        while self.used + len(self._kept) > self._blocks:
            self._kept.popitem(last=False)
        self.peak = max(self.peak, self.used)
        return Held(shared, own, known * self._block_tokens)

    def give_back(self, held: Held) -> None:
        """Its request has left."""
        self._own -= held.own
        # The ends of prompts are worth less than their beginnings, and go first.
        for block in reversed(held.shared):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._kept[block] = None


def _chain(prompt_ids: Sequence[int], block_tokens: int) -> tuple[Hashable, ...]:
    """A name for each full block; the last token is computed anew whatever is cached."""
    names: list[Hashable] = []
    before = 0
    for end in range(block_tokens, len(prompt_ids), block_tokens):
        before = hash((before, tuple(prompt_ids[end - block_tokens : end])))
        names.append(before)
    return tuple(names)
