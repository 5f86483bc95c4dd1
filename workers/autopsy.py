"""After an engine's death: start it again, find the request that killed it, and let the others
live.

The reasoning is in engines/suspects.py; here its questions are put to a real engine.
"""

import contextlib
from collections.abc import Callable, Iterable

import structlog

from batchgen.domain.errors import EngineError, HostDied, HostHung, Unavailable
from batchgen.domain.outcomes import Failed
from batchgen.engines.client import EngineClient
from batchgen.engines.suspects import Death, Investigation, Probe, Suspicions, death_of
from batchgen.storage import job_events, suspects
from workers.context import Context
from workers.in_flight import InFlight, Key
from workers.prepare import failed_record
from workers.resident import Resident

log = structlog.get_logger(__name__)

_POLL_S = 0.05


def convicted(why: str) -> Failed:
    """How a request ends that kills engines."""
    return Failed(500, "engine_crash", f"the engine fails when it runs this request: {why}")


class Autopsy:
    """Conducts one session's investigations.

    `run_one` submits a request alone and returns its id, `hear` takes what the engine has to say
    (and raises its death), `withdraw` takes a request back that has not ended.
    """

    def __init__(
        self,
        context: Context,
        resident: Resident,
        suspicions: Suspicions[Key],
        *,
        run_one: Callable[[InFlight], int],
        hear: Callable[[float], None],
        withdraw: Callable[[int], None],
        keep_alive: Callable[[], None],
    ) -> None:
        self._context = context
        self._resident = resident
        self._suspicions = suspicions
        self._run_one = run_one
        self._hear = hear
        self._withdraw = withdraw
        self._keep_alive = keep_alive

    def conduct(self, death: HostDied | HostHung, in_flight: dict[int, InFlight]) -> list[InFlight]:
        """Returns those to run again, in their old order; the guilty have their error line.

        Raises EngineError where the engine cannot be loaded again or crashes on whatever it is
        given.
        """
        client = self._resident.client
        if client is None:
            # It died while it was loaded anew, of nothing that it was given.
            raise EngineError(str(death)) from death
        crumbs = client.breadcrumbs()
        items = {item.key: item for item in in_flight.values()}
        ages = {in_flight[i].key: crumbs.age(i) for i in in_flight if i in crumbs.live}
        if not ages:
            # It died of none that it was working on: of one that it was being given, then.
            ages = {item.key: 1 for item in in_flight.values()}
        self._note(death, items, suspects=len(ages))
        investigation = self._suspicions.died(death_of(death), ages)
        self._resident.reload(str(death), self._keep_alive)
        return self._investigate(investigation, items, str(death))

    def question(self, doubtful: Iterable[InFlight]) -> list[InFlight]:
        """Run alone those whose probes an earlier worker did not live to finish; returns the
        innocent.

        Call it only while the engine has nothing else to do. Raises as `conduct`.
        """
        items = {item.key: item for item in doubtful}
        strikes = {key: item.work.strikes[item.line.index] for key, item in items.items()}
        why = "a worker died while it ran alone"
        return self._investigate(self._suspicions.inherit(strikes), items, why)

    def _investigate(
        self, investigation: Investigation[Key], items: dict[Key, InFlight], why: str
    ) -> list[InFlight]:
        while (probe := investigation.next_probe()) is not None:
            crash = self._probe(items[probe.key], probe)
            if crash is None:
                investigation.passed()
            else:
                investigation.crashed(crash)
                self._resident.reload("crashed in a probe", self._keep_alive)
        verdict = investigation.verdict()
        if verdict.sick:
            reason = f"the engine fails on whatever it is given: {why}"
            if self._resident.fingerprint is not None:
                self._resident.note_failure(self._resident.fingerprint, reason)
            raise EngineError(reason)
        for key in verdict.guilty:
            item = items.pop(key)
            item.work.add(failed_record(item.line, convicted(why)))
            log.warning("request_convicted", job=item.work.claimed.job_id, index=item.line.index)
        return [item for item in items.values() if not item.work.has_record(item.line.index)]

    def _probe(self, item: InFlight, probe: Probe[Key]) -> Death | None:
        """Run it alone for so many steps, or to its end; how the engine died of it, or None."""
        client = self._resident.client
        if client is None:
            raise EngineError("the engine is not loaded")
        self._strike(item)
        request_id = self._run_one(item)
        try:
            while client.in_flight and _steps_of(client, request_id) < probe.steps:
                self._hear(_POLL_S)
                self._keep_alive()
        except (HostDied, HostHung) as death:
            return death_of(death)
        except BaseException:
            # The worker is told to stop, or has lost its work: that is not the request's doing.
            with contextlib.suppress(Unavailable):
                self._take_back(item)
            raise
        finally:
            # Also of a host that is dead: nothing of it is in flight any more.
            self._withdraw(request_id)
        self._absolve(item)
        return None

    def _strike(self, item: InFlight) -> None:
        # Written down before the try: it must outlive this process.
        with self._context.database.unit_of_work() as tx:
            suspects.strike(tx, item.work.claimed.id, [item.line.index], "run alone after a crash")

    def _take_back(self, item: InFlight) -> None:
        with self._context.database.unit_of_work() as tx:
            suspects.take_back(tx, item.work.claimed.id, item.line.index)

    def _absolve(self, item: InFlight) -> None:
        with self._context.database.unit_of_work() as tx:
            suspects.absolve(tx, item.work.claimed.id, [item.line.index])

    def _note(self, death: Exception, items: dict[Key, InFlight], *, suspects: int) -> None:
        log.warning("engine_died", reason=str(death), in_flight=len(items), suspects=suspects)
        data = {"reason": str(death), "in_flight": len(items), "suspects": suspects}
        try:
            with self._context.database.unit_of_work() as tx:
                for job_id in {item.work.claimed.job_id for item in items.values()}:
                    job_events.record(tx, job_id, "engine_died", data)
        except Unavailable:
            return


def _steps_of(client: EngineClient, request_id: int) -> int:
    """How many steps the engine has begun to work on a request; none while it only waits."""
    crumbs = client.breadcrumbs()
    return crumbs.age(request_id) if request_id in crumbs.live else 0
