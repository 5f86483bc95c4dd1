"""The control worker without a broker: it looks by itself, and nothing there waits for a large
file.
"""

import threading
from collections.abc import Iterator

from sqlalchemy import text

from batchgen.domain.clock import SystemClock
from batchgen.domain.ids import JobId
from batchgen.domain.states import JobState
from batchgen.storage.object_directory import Directory
from batchgen.storage.objects import CHUNK_BYTES, ObjectStore
from tests.house import House, chat_lines
from tests.waiting import until
from workers.context import Context
from workers.control import ControlWorker
from workers.poller import Poller
from workers.stop import Stop


class SlowStore(ObjectStore):
    """Gives the end of the object `slow` only once `go` is set."""

    slow = ""

    def __init__(self, url: str) -> None:
        super().__init__(Directory.from_url(url))
        self.begun = threading.Event()
        self.go = threading.Event()

    def stream(
        self, key: str, start: int = 0, end: int | None = None, chunk: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        yield from super().stream(key, start, end, chunk)
        if key == self.slow:
            self.begun.set()
            self.go.wait(60)


def test_a_file_that_takes_long_to_read_holds_up_neither_sweeps_nor_ends(house: House) -> None:
    house.register()
    worked_off = house.queue(chat_lines(2))
    device = house.worker()
    device.serve()
    device.leave()
    overdue = house.queue(chat_lines(2))
    large = house.submit(chat_lines(2))
    store = SlowStore(house.settings.store)
    with house.database.unit_of_work() as tx:
        tx.execute(text("UPDATE jobs SET expires_at = now() WHERE id = :id"), {"id": overdue.id})
        query = text("SELECT input_key FROM jobs WHERE id = :id")
        store.slow = tx.execute(query, {"id": large.id}).scalar_one()
    control = ControlWorker(
        Context(house.settings, house.database, store, house.bells, SystemClock())
    )
    stop = Stop()
    pollers = {
        name: Poller(look, 0.02, stop, on_lost=stop.set, name=name)
        for name, look in control.looks().items()
    }

    def is_in(job_id: JobId, state: JobState) -> bool:
        return house.job(job_id).state is state

    try:
        pollers["ingest"].start()
        assert store.begun.wait(30)
        for name in pollers.keys() - {"ingest"}:
            pollers[name].start()
        until(lambda: is_in(worked_off.id, JobState.COMPLETED))
        until(lambda: is_in(overdue.id, JobState.EXPIRED))
        assert is_in(large.id, JobState.VALIDATING)
        store.go.set()
        until(lambda: is_in(large.id, JobState.QUEUED))
    finally:
        store.go.set()
        stop.set()
        for poller in pollers.values():
            poller.join(30)
