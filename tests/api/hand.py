"""A worker's hand: claims shards and writes records, with no engine behind it."""

from collections.abc import Iterable

from batchgen.domain.ids import JobId
from batchgen.domain.jobs import ClaimedShard, Usage
from batchgen.domain.outcomes import Choice, Failed, FinishReason, Generation, Timings
from batchgen.domain.requests import Endpoint, GenerationRequest, SamplingParams, TextPrompt
from batchgen.formats.openai import error_line, output_line, timing_line
from batchgen.services import records
from batchgen.services.records import Record
from batchgen.storage import shards
from tests.house import House


class Hand:
    """Works on the jobs of a house as a device worker would."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._n_objects = 0

    def claim(self) -> ClaimedShard:
        with self._house.database.unit_of_work() as tx:
            shard = shards.claim(tx, pool="default", device="CPU", holder="hand", lease_s=60)
        assert shard is not None
        return shard

    def checkpoint(
        self, shard: ClaimedShard, done: Iterable[int], failed: Iterable[int] = ()
    ) -> None:
        """Write these lines down, in the order in which they are given."""
        draft = self._write(shard, done, failed)
        with self._house.database.unit_of_work() as tx:
            shards.checkpoint(tx, shard, draft)

    def finish(self, shard: ClaimedShard, failed: Iterable[int] = ()) -> None:
        """The whole shard at once; earlier checkpoints and their objects go."""
        indexes = range(shard.plan.first_index, shard.plan.first_index + shard.plan.n_requests)
        bad = set(failed)
        draft = self._write(shard, (i for i in indexes if i not in bad), bad)
        with self._house.database.unit_of_work() as tx:
            replaced = shards.finish(tx, shard, draft)
        for key in replaced:
            self._house.store.delete(key)

    def work_off(self, job_id: JobId, failed: Iterable[int] = ()) -> None:
        """All of the job's lines, and its end."""
        bad = set(failed)
        with self._house.database.unit_of_work() as tx:
            n_shards = len(shards.pending_of(tx, job_id, limit=1_000))
        for _ in range(n_shards):
            shard = self.claim()
            first = shard.plan.first_index
            self.finish(shard, bad & set(range(first, first + shard.plan.n_requests)))
        self._house.finalize(job_id)

    def _write(
        self, shard: ClaimedShard, done: Iterable[int], failed: Iterable[int]
    ) -> records.SegmentDraft:
        self._n_objects += 1
        key = records.object_key(shard.job_id, shard.plan.seq, shard.token, self._n_objects)
        found = [*(completed(i) for i in done), *(refused(i) for i in failed)]
        n = sum(record.timing is not None for record in found)
        return records.write(self._house.store, key, found, Usage(2 * n, n, 3 * n))


def completed(index: int) -> Record:
    """A line that has answered three tokens to two, one of them from the cache."""
    request = GenerationRequest(
        custom_id=f"r{index}",
        index=index,
        line=index + 1,
        endpoint=Endpoint.CHAT_COMPLETIONS,
        prompt=TextPrompt("say"),
        sampling=SamplingParams(),
    )
    generation = Generation(
        choices=(Choice((1, 2, 3), FinishReason.STOP, text=f"said {index}"),),
        n_in=2,
        n_cached=1,
        n_out=3,
        timings=Timings(t_enq=1, t_adm=2, t_first=3, t_last=4),
    )
    line = output_line(request, generation, model="sim", created=1)
    return Record(index, line, timing_line(request, generation))


def refused(index: int) -> Record:
    """A line that cannot run."""
    return Record(index, error_line(f"r{index}", Failed(400, "bad", "it cannot run")))
