"""One control worker's hold on a job while it ingests or finalizes it, and the end of that hold.

A step that failed, or whose worker died, has been counted: the job rests, longer each time, and the
step may do with less (see `GIVE_UP_AFTER`). What says nothing of the job - another holder, a server
that is away - is not counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from batchgen.domain.errors import LostLease, Unavailable
from batchgen.domain.ids import JobId
from batchgen.storage import control, job_events
from batchgen.storage.control import ControlLease
from batchgen.storage.session import Database

# After so many failures in a row a step does without what it may be failing at.
GIVE_UP_AFTER = 5
_LONGEST_REST_S = 60.0
_LONGEST_AFTER = 6


class Interrupted(Exception):
    """The step ended before its time for a reason that is not the job's."""


@contextmanager
def control_lease(
    database: Database, job_id: JobId, lease_s: float
) -> Iterator[ControlLease | None]:
    """The right to the job's next step; None where another has it or no step is due.

    Whatever the body raises is passed on. Raises Unavailable.
    """
    with database.unit_of_work() as tx:
        lease = control.claim(tx, job_id, lease_s)
    if lease is None:
        yield None
        return
    try:
        yield lease
    except (LostLease, Unavailable, Interrupted):
        _release(database, lease)
        raise
    except Exception as error:
        _put_off(database, lease, error)
        raise
    except BaseException:
        _release(database, lease)
        raise
    else:
        with database.unit_of_work() as tx:
            control.release(tx, lease)


def _release(database: Database, lease: ControlLease) -> None:
    # Where it cannot be done the lease ends by itself.
    with suppress(Unavailable), database.unit_of_work() as tx:
        control.release(tx, lease)


def _put_off(database: Database, lease: ControlLease, error: Exception) -> None:
    rest_s = min(2.0 ** min(lease.attempts, _LONGEST_AFTER), _LONGEST_REST_S)
    with suppress(Unavailable), database.unit_of_work() as tx:
        control.put_off(tx, lease, rest_s)
        if lease.attempts <= GIVE_UP_AFTER:
            # Of the error only its type: its message may repeat what users handed in.
            told = {"attempt": lease.attempts, "error": type(error).__name__, "rest_s": rest_s}
            job_events.record(tx, lease.job_id, "control_failed", told)
