"""Read a job's input once: reject it with all of its faults, or cut it into shards and queue it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from sqlalchemy import Connection

from batchgen.dispatch import Bells
from batchgen.domain.clock import Clock, SystemClock
from batchgen.domain.errors import InvalidRequest, LostLease, NotFound
from batchgen.domain.failpoints import Failpoint, reach
from batchgen.domain.ids import JobId
from batchgen.domain.jobs import Fault, Job, ShardPlan
from batchgen.domain.states import PUBLISHABLE_JOB_STATES, JobEvent, JobState
from batchgen.engines.spec import encode_spec
from batchgen.formats.cutting import Limits
from batchgen.formats.validate import Scan
from batchgen.services import model_content
from batchgen.services.control_lease import GIVE_UP_AFTER, Interrupted, control_lease
from batchgen.services.models import Resolved, resolve
from batchgen.settings import Settings
from batchgen.storage import control, jobs, models, shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

# The control lease is renewed when this share of it has passed.
_RENEW_AT = 0.25
_UNREADABLE = Fault(
    "internal_error",
    f"the service failed at this file {GIVE_UP_AFTER} times and gave it up; its log says why",
)
# While a large model is hashed, this often whether the lease is due.
_HASH_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Ingested:
    """What came of it. `state` is the job's state after, `pool` and `device` who is to work on
    it.
    """

    state: JobState
    n_requests: int = 0
    n_shards: int = 0
    n_faults: int = 0
    pool: str | None = None
    device: str | None = None


class _Overtaken(Interrupted):
    """The job was cancelled, or expired, while its file was read."""

    def __init__(self, state: JobState) -> None:
        self.state = state


def run_once(
    database: Database,
    store: ObjectStore,
    bells: Bells,
    settings: Settings,
    job_id: JobId,
    *,
    clock: Clock | None = None,
    go_on: Callable[[], bool] = lambda: True,
) -> Ingested | None:
    """Validate and shard the job if that is due; None where another is at it, it is done, or
    `go_on` said no while the file was read.

    Killed at any point, it can be run again from the start: shards, engine and state come in one
    transaction at the end. A file at which several workers died or failed is refused. Raises
    Unavailable.
    """
    try:
        with control_lease(database, job_id, settings.lease_s) as held:
            if held is None:
                return None
            reach(Failpoint.INGEST_BEGUN)
            lease = _KeptLease(database, held, settings.lease_s, clock or SystemClock(), go_on)
            done = _run(database, store, settings, lease)
    except _Overtaken as overtaken:
        if overtaken.state not in PUBLISHABLE_JOB_STATES:
            return None
        done = Ingested(overtaken.state)
    except (LostLease, Interrupted):
        return None
    reach(Failpoint.INGEST_COMMITTED)
    if done.pool is not None:
        bells.ring_devices(done.pool, done.device)
    elif done.state in PUBLISHABLE_JOB_STATES:
        # Whoever cancelled it rang while the control lease was held here.
        bells.ring_finalize(job_id)
    return done


class _KeptLease:
    """The right to ingest the job, kept up while the file is read."""

    def __init__(
        self,
        database: Database,
        held: control.ControlLease,
        lease_s: float,
        clock: Clock,
        go_on: Callable[[], bool],
    ) -> None:
        self.held = held
        self.job_id = held.job_id
        self._database = database
        self._lease_s = lease_s
        self._clock = clock
        self._go_on = go_on
        self._renew_at = clock.monotonic() + lease_s * _RENEW_AT

    def keep(self) -> None:
        """Renew the lease where it is time. Raises LostLease or Interrupted."""
        if not self._go_on():
            raise Interrupted
        if self._clock.monotonic() < self._renew_at:
            return
        with self._database.unit_of_work() as tx:
            self.hold(tx)

    def hold(self, tx: Connection) -> None:
        """Renew the lease and lock the job for this transaction. Raises LostLease or _Overtaken."""
        self._renew_at = self._clock.monotonic() + self._lease_s * _RENEW_AT
        state = control.renew(tx, self.held, self._lease_s)
        if state is not JobState.VALIDATING:
            raise _Overtaken(state)


def _run(database: Database, store: ObjectStore, settings: Settings, lease: _KeptLease) -> Ingested:
    if lease.held.attempts > GIVE_UP_AFTER:
        return _reject(database, lease, [_UNREADABLE])
    with database.unit_of_work() as tx:
        lease.hold(tx)
        job = jobs.get(tx, lease.job_id)
        source = jobs.input_key(tx, lease.job_id)

    def open_chunks() -> Iterator[bytes]:
        for chunk in store.stream(source):
            lease.keep()
            yield chunk

    scan = Scan(open_chunks, endpoint=job.endpoint, model=job.model, limits=Limits.of(settings))
    try:
        plans = list(scan)
    except NotFound:
        return _reject(database, lease, [Fault("file_not_found", "the input file is gone")])
    if scan.faults or scan.model is None:
        return _reject(database, lease, scan.faults)
    return _accept(database, settings, lease, job, name=scan.model, plans=plans)


def _reject(database: Database, lease: _KeptLease, faults: list[Fault]) -> Ingested:
    with database.unit_of_work() as tx:
        lease.hold(tx)
        jobs.set_faults(tx, lease.job_id, faults)
        state = jobs.advance(tx, lease.job_id, JobEvent.REJECTED)
    return Ingested(state, n_faults=len(faults))


def _accept(
    database: Database,
    settings: Settings,
    lease: _KeptLease,
    job: Job,
    *,
    name: str,
    plans: list[ShardPlan],
) -> Ingested:
    n_requests = sum(plan.n_requests for plan in plans)
    _hash_model(database, settings, lease, name)
    with database.unit_of_work() as tx:
        lease.hold(tx)
        resolved = _resolved(tx, job, name)
        if isinstance(resolved, Resolved):
            model = resolved.model
            jobs.pin(
                tx,
                job.id,
                model=model.name,
                model_id=model.id,
                spec=encode_spec(resolved.spec),
                fingerprint=resolved.fingerprint,
                pool=model.pool,
                device=model.device,
                n_total=n_requests,
            )
            shards.insert(tx, job.id, plans)
            state = jobs.advance(tx, job.id, JobEvent.SHARDED)
            reach(Failpoint.INGEST_UNCOMMITTED)
            return Ingested(state, n_requests, len(plans), pool=model.pool, device=model.device)
    return _reject(database, lease, [resolved])


def _hash_model(database: Database, settings: Settings, lease: _KeptLease, name: str) -> None:
    """A job pins the content of its model: a large one that nobody has read yet is read now."""
    try:
        with database.unit_of_work() as tx:
            model = models.current(tx, name)
    except NotFound:
        return
    with ThreadPoolExecutor(1, "model-hash") as beside:
        filled = beside.submit(model_content.fill, database, settings, model)
        while not wait([filled], timeout=_HASH_LOOK_S).done:
            lease.keep()
        filled.result()


def _resolved(tx: Connection, job: Job, name: str) -> Resolved | Fault:
    try:
        return resolve(tx, name, job.overrides, job.endpoint)
    except (NotFound, InvalidRequest) as error:
        # Where the job itself names the model it was there at submission, and was retired since.
        return Fault(error.code, error.message, None, error.param)
