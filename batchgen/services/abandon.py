"""Give up shards that took worker after worker down: their open lines end as errors, the job goes
on.
"""

from batchgen.dispatch import Bells
from batchgen.domain.jobs import GIVE_UP_AFTER
from batchgen.domain.outcomes import Failed
from batchgen.services import cut
from batchgen.storage import shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

_SHARDS_AT_ONCE = 16
_WHY = Failed(
    500,
    "worker_lost",
    f"{GIVE_UP_AFTER} workers in a row were lost while they held this part of the job, before any "
    "line of it was done; their logs may say why",
)


def run_once(database: Database, store: ObjectStore, bells: Bells) -> int:
    """How many shards were given up. Raises Unavailable."""
    with database.unit_of_work() as tx:
        lost = shards.given_up(tx, limit=_SHARDS_AT_ONCE)
    ended = [shard for shard in lost if cut.end_open_lines(database, store, shard, _WHY)]
    for job_id in {shard.job_id for shard in ended}:
        with database.unit_of_work() as tx:
            over = not shards.is_unfinished(tx, job_id)
        if over:
            bells.ring_finalize(job_id)
    return len(ended)
