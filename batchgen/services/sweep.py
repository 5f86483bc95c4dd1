"""Everything that must happen although nobody asked: reap, expire, give up, ring again, remove."""

from dataclasses import dataclass

from batchgen.dispatch import Bells
from batchgen.domain.states import JobEvent
from batchgen.services import abandon
from batchgen.services.records import job_prefix
from batchgen.storage import control, files, fleet, jobs, shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

_REMOVALS_AT_ONCE = 100
# An upload that has not grown for a day has lost its writer.
_ABANDONED_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did."""

    leases_reaped: int
    shards_given_up: int
    jobs_expired: int
    to_ingest: int
    to_finalize: int
    places_rung: int
    objects_removed: int
    uploads_abandoned: int


def run_once(database: Database, store: ObjectStore, bells: Bells) -> Swept:
    """One sweep; any number of them may run at the same time."""
    with database.unit_of_work() as tx:
        reaped = shards.reap(tx)
    expired = _expire(database)
    given_up = abandon.run_once(database, store, bells)
    with database.unit_of_work() as tx:
        to_ingest = control.needing_ingest(tx)
        to_finalize = control.needing_publication(tx)
        places = fleet.places_with_work(tx)
    for job_id in to_ingest:
        bells.ring_ingest(job_id)
    for job_id in to_finalize:
        bells.ring_finalize(job_id)
    for pool, device in places:
        bells.ring_devices(pool, device)
    return Swept(
        leases_reaped=reaped,
        shards_given_up=given_up,
        jobs_expired=expired,
        to_ingest=len(to_ingest),
        to_finalize=len(to_finalize),
        places_rung=len(places),
        objects_removed=_remove(database, store),
        uploads_abandoned=store.remove_abandoned(_ABANDONED_S),
    )


def _expire(database: Database) -> int:
    with database.unit_of_work() as tx:
        overdue = control.overdue(tx)
    expired = 0
    for job_id in overdue:
        with database.unit_of_work() as tx:
            # Since the look it may have ended, or been given more time.
            if control.lock_overdue(tx, job_id):
                jobs.advance(tx, job_id, JobEvent.EXPIRE)
                expired += 1
    return expired


def _remove(database: Database, store: ObjectStore) -> int:
    with database.unit_of_work() as tx:
        due = files.objects_to_remove(tx, limit=_REMOVALS_AT_ONCE)
    for file_id, key in due:
        store.delete(key)
        with database.unit_of_work() as tx:
            files.mark_removed(tx, file_id)
    return len(due) + _remove_results(database, store)


def _remove_results(database: Database, store: ObjectStore) -> int:
    """What jobs have left that nobody can read any more."""
    with database.unit_of_work() as tx:
        due = files.results_to_remove(tx, limit=_REMOVALS_AT_ONCE)
    n_removed = 0
    for file_id, job_id in due:
        for key in list(store.list(job_prefix(job_id))):
            store.delete(key)
            n_removed += 1
        with database.unit_of_work() as tx:
            files.mark_removed(tx, file_id)
    return n_removed
