"""Room in the KV cache: what a request may take of it, and when it may begin.

The pipeline takes whatever it is given, waiting requests pin the cached prefixes that they share,
and when nothing can be scheduled it gives up on everybody (or, with several choices a request,
never comes back from its step). So requests wait outside while the pool is short.
"""

from collections.abc import Collection

from batchgen.domain.outcomes import Failed
from batchgen.engines.checks import kv_capacity
from batchgen.engines.openvino.live import Live


class KvPool:
    """A pool of so many blocks of so many tokens; None grows as needed and has room for everything.

    `evicts`: old tokens of a sequence are dropped from it. `draft_tokens` are put in before they
    are verified.
    """

    def __init__(
        self,
        blocks: int | None,
        *,
        block_tokens: int = 1,
        evicts: bool = False,
        draft_tokens: int = 0,
    ):
        self._blocks = blocks
        self._block_tokens = block_tokens
        self._evicts = evicts
        self._draft_tokens = draft_tokens

    def answer_limit(self, n_in: int, n: int, asked: int) -> int | Failed:
        """How many of the `asked` tokens each of `n` choices can have with the pool to itself."""
        if self._blocks is None:
            return asked
        room = max(0, self._blocks // n * self._block_tokens - self._draft_tokens)
        if n_in >= room:
            each = f" in each of {n} choices" if n > 1 else ""
            return kv_capacity(
                f"The prompt has {n_in} tokens; the KV cache has room for {room}{each}."
            )
        return asked if self._evicts else min(asked, room - n_in)

    def admits(
        self, new: Live, running: Collection[Live], *, used: float, some_unscheduled: bool
    ) -> bool:
        """Whether a request may begin beside those that run.

        `used` is the share of the pool in use after the last step, `some_unscheduled` whether the
        pipeline had requests then that it could not work on. Nothing is reserved for answers, which
        mostly end early: when they grow too long together the pipeline recomputes the newest. With
        several choices a request, or a prompt that is scored, it must never come to that.
        """
        if self._blocks is None or not running:
            return True
        if any(live.request.sampling.n > 1 or live.scores_prompt for live in (new, *running)):
            return sum(map(self._whole, (new, *running))) <= self._blocks
        if some_unscheduled and used > 0.5:
            return False
        taken = used * self._blocks
        to_come = sum(self._prompt(live) for live in running if not live.begun())
        growth = len(running) + 1
        return taken + to_come + growth + self._prompt(new) <= self._blocks

    def _whole(self, live: Live) -> int:
        tokens = len(live.request.prompt_ids) + live.limit + self._draft_tokens
        return live.request.sampling.n * self._blocks_of(tokens)

    def _prompt(self, live: Live) -> int:
        return self._blocks_of(len(live.request.prompt_ids))

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)
