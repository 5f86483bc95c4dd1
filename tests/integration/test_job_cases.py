"""What goes wrong for people who run such systems, and what must come of it."""

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from batchgen.domain.errors import Conflict, LostLease
from batchgen.domain.jobs import Usage
from batchgen.domain.states import TERMINAL_JOB_STATES, JobState
from batchgen.services import cancel, records, sweep
from batchgen.storage import control, shards
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.house import PROJECT, House, chat_lines
from tests.waiting import until
from workers.context import Context
from workers.control import ControlWorker


@contextmanager
def at_work(house: House) -> Iterator[None]:
    """A control worker and a device worker that look for work all the time."""
    context = Context.from_settings(house.settings)
    control, device = ControlWorker(context), house.worker()
    stop = threading.Event()

    def loop(look):  # type: ignore[no-untyped-def]
        while not stop.wait(0.01):
            look()

    looks = [*control.looks().values(), device.serve]
    threads = [threading.Thread(target=loop, args=(look,)) for look in looks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
        device.leave()
        context.database.close()


def test_a_cancel_at_any_moment_ends_the_job_and_never_takes_it_back(house: House) -> None:
    house.register(max_num_seqs=4, step_s=0.001)
    chance = random.Random(7)
    pause = threading.Event()
    made = []
    with at_work(house):
        for _ in range(200):
            job = house.submit(chat_lines(3))
            made.append(job.id)
            pause.wait(chance.uniform(0, 0.12))
            try:
                cancel.cancel(house.database, house.bells, job.id, PROJECT)
            except Conflict:
                assert house.job(job.id).state is JobState.COMPLETED
        for job_id in made:
            until(lambda job_id=job_id: house.job(job_id).state in TERMINAL_JOB_STATES)
    ended = Counter(house.job(job_id).state for job_id in made)
    assert set(ended) <= {JobState.COMPLETED, JobState.CANCELLED}
    for job_id in made:
        job = house.job(job_id)
        # Cancelled before it was read, a job has no lines yet; else each line is there once.
        assert sorted(house.ids(job_id)) == (["r0", "r1", "r2"] if job.counts.total else [])


def test_expiry_keeps_finished_lines_though_the_worker_was_down_at_the_deadline(
    house: House,
) -> None:
    house.register(max_num_seqs=4, step_s=0.01)
    job = house.queue(chat_lines(100), completion_window="1m")
    worker = house.worker()
    serving = threading.Thread(target=worker.serve)
    serving.start()
    until(lambda: house.job(job.id).counts.completed)
    worker.leave()
    serving.join(30)
    before = house.job(job.id).counts.completed
    _pass_the_deadline(house, job.id)
    late = house.worker()
    try:
        late.serve()
    finally:
        late.leave()
    assert house.job(job.id).counts.completed == before, "generated after the deadline"
    sweep.run_once(house.database, house.store, house.bells)
    house.finalize(job.id)
    job = house.job(job.id)
    assert job.state is JobState.EXPIRED
    assert job.counts.completed == before
    assert set(house.codes(job.id).values()) == {"batch_expired"}
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(100))


def test_a_stopped_worker_and_its_successor_never_own_a_shard_together(house: House) -> None:
    house.register(max_num_seqs=4, step_s=0.005)
    job = house.queue(chat_lines(120))
    first = house.worker("CPU.0")
    other = house.worker("CPU.1")
    threads = [threading.Thread(target=w.serve) for w in (first, other)]
    for thread in threads:
        thread.start()
    until(lambda: house.job(job.id).counts.completed)
    first.leave()
    again = house.worker("CPU.0")
    again.serve()
    for thread in threads:
        thread.join(60)
    again.leave()
    other.leave()
    house.finalize(job.id)
    assert house.job(job.id).state is JobState.COMPLETED
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(120))


def test_a_worker_cut_off_from_the_database_stops_before_its_lease_ends(
    house: House, tmp_path: Path
) -> None:
    house.register(max_num_seqs=4, step_s=0.005)
    job = house.queue(chat_lines(60, max_tokens=32))
    with Wire(house.settings.database_url, tmp_path) as wire:
        changed = {"database_url": wire.url, "lease_s": 2.0}
        database = Database(wire.url)
        cut_off = House(database, house.store, house.settings.model_copy(update=changed)).worker(
            "CPU.0"
        )
        serving = threading.Thread(target=cut_off.serve)
        serving.start()
        until(lambda: house.job(job.id).state is JobState.RUNNING)
        wire.cut()
        until(lambda: _leases_reaped(house))
        rescuer = house.worker("CPU.1")
        rescuer.serve()
        house.finalize(job.id)
        rescuer.leave()
        ended = house.job(job.id)
        assert ended.state is JobState.COMPLETED
        serving.join(30)
        assert not serving.is_alive(), "it went on without a lease"
        wire.mend()
        cut_off.serve()
        cut_off.leave()
        database.close()
    assert house.job(job.id) == ended
    assert sorted(house.ids(job.id)) == sorted(f"r{i}" for i in range(60))


@pytest.mark.parametrize("n", [1, 3])
def test_a_late_worker_cannot_commit_to_a_reclaimed_shard(
    house: House, store: ObjectStore, n: int
) -> None:
    house.register()
    house.queue(chat_lines(n))
    claimed = []
    for holder in ("first", "second"):
        with house.database.unit_of_work() as tx:
            claimed.append(
                shards.claim(tx, pool="default", device="CPU", holder=holder, lease_s=60)
            )
            tx.execute(text("UPDATE shards SET lease_until = now() - interval '1 s'"))
        if holder == "first":
            with house.database.unit_of_work() as tx:
                assert shards.reap(tx) == 1
    late, holder = claimed
    assert late is not None
    assert holder is not None
    made = [records.Record(i, b"{}\n") for i in range(n)]
    draft = records.write(store, "jobs/late", made, Usage())
    with pytest.raises(LostLease), house.database.unit_of_work() as tx:
        shards.finish(tx, late, draft)
    with house.database.unit_of_work() as tx:
        shards.finish(tx, holder, draft)


def _pass_the_deadline(house: House, job_id: str) -> None:
    with house.database.unit_of_work() as tx:
        tx.execute(
            text("UPDATE jobs SET expires_at = now() - interval '1 s' WHERE id = :id"),
            {"id": job_id},
        )
        assert control.overdue(tx) == [job_id]


def _leases_reaped(house: House) -> bool:
    with house.database.unit_of_work() as tx:
        return shards.reap(tx) > 0


class Wire:
    """A wire to the database that can be cut: connections break, and no new one comes about."""

    def __init__(self, database_url: str, folder: Path) -> None:
        url = make_url(database_url)
        self._real = f"{url.query['host']}/.s.PGSQL.5432"
        self._path = folder / ".s.PGSQL.5432"
        near = url.update_query_dict({"host": str(folder)})
        self.url = near.render_as_string(hide_password=False)
        self._whole = True
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "Wire":
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self._path))
        self._listening.listen()
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()
        self._break()

    def cut(self) -> None:
        self._whole = False
        self._break()

    def mend(self) -> None:
        self._whole = True

    def _break(self) -> None:
        broken, self._sockets = self._sockets, []
        for each in broken:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            if not self._whole:
                near.close()
                continue
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._real)
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()
