"""End the lines of a shard that are open yet, without running them; what has its record keeps
it.
"""

import uuid
from typing import assert_never

import structlog

from batchgen.domain.errors import LostLease, NotFound
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import LeaseToken
from batchgen.domain.jobs import OpenShard
from batchgen.domain.outcomes import Cut, Failed
from batchgen.formats.jsonl import request_lines
from batchgen.formats.openai import cut_line, error_line
from batchgen.formats.validate import custom_id_of
from batchgen.services import records
from batchgen.storage import segments, shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

log = structlog.get_logger(__name__)


def end_open_lines(
    database: Database, store: ObjectStore, shard: OpenShard, why: Cut | Failed
) -> bool:
    """Make a pending shard done, its open lines ending as `why`.

    False where the shard is no longer pending: nothing has changed then. Raises Unavailable.
    """
    with database.unit_of_work() as tx:
        earlier = segments.of_shard(tx, shard.id)
    found, usage = records.read(store, earlier)
    names, plan = _custom_ids(store, shard), shard.plan
    for index in range(plan.first_index, plan.first_index + plan.n_requests):
        if index not in found:
            found[index] = records.Record(index, _line(names.get(index), why))
    # What the shard has of results keeps its origin: manifest and metrics go by it.
    made_by = records.sessions(earlier)
    key = records.object_key(shard.job_id, plan.seq, LeaseToken(uuid.uuid4()), 0)
    draft = records.write(store, key, found.values(), usage, made_by)
    reach(Failpoint.CUT_WRITTEN)
    try:
        with database.unit_of_work() as tx:
            replaced = shards.cut(tx, shard.job_id, shard.id, draft)
            reach(Failpoint.CUT_UNCOMMITTED)
    except LostLease:
        store.delete(key)
        return False
    reach(Failpoint.CUT_COMMITTED)
    for gone in replaced:
        store.delete(gone)
    return True


def _line(custom_id: str | None, why: Cut | Failed) -> bytes:
    match why:
        case Cut():
            return cut_line(custom_id, why)
        case Failed():
            return error_line(custom_id, why)
        case _:
            assert_never(why)


def _custom_ids(store: ObjectStore, shard: OpenShard) -> dict[int, str | None]:
    """By the requests' indexes; empty where the input is lost: the job is to end all the same."""
    plan = shard.plan
    try:
        data = store.get_range(shard.source, plan.byte_start, plan.byte_end)
    except NotFound as error:
        log.error("input_lost", job=shard.job_id, reason=str(error))  # noqa: TRY400 - an event, not a bug
        return {}
    lines = request_lines(data, first_line=plan.first_line, first_index=plan.first_index)
    return {line.index: custom_id_of(line.raw) for line in lines}
