"""What a session does with the shards that it holds while a server is away."""

from batchgen.domain.clock import SystemClock
from batchgen.domain.errors import Unavailable
from batchgen.domain.outcomes import Failed
from batchgen.storage import shards
from batchgen.storage.object_directory import Directory
from batchgen.storage.objects import ObjectStore, Stored
from tests.house import House, chat_lines
from workers.context import Context
from workers.device_record import DeviceRecord
from workers.leases import Leases
from workers.prepare import failed_record
from workers.resident import Resident


class FullStore(ObjectStore):
    """Takes no object more, and remembers what it was brought."""

    def __init__(self, url: str) -> None:
        super().__init__(Directory.from_url(url))
        self.brought: list[tuple[str, bytes]] = []

    def put(self, key: str, data: bytes) -> Stored:
        self.brought.append((key, data))
        raise Unavailable("no space left")

    @property
    def shards(self) -> list[str]:
        """Which shards the objects were of."""
        return [key.split("/")[2].split("-")[0] for key, _ in self.brought]


class MovedClock(SystemClock):
    moved_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.moved_s


def test_a_store_that_is_away_is_tried_once_between_heartbeats_with_each_shard_in_turn(
    house: House,
) -> None:
    house.register()
    house.queue(chat_lines(30))
    store, clock = FullStore(house.settings.store), MovedClock()
    context = Context(house.settings, house.database, store, house.bells, clock)
    record = DeviceRecord(context, "CPU", "default")
    resident = Resident(context, record.id, "CPU")
    leases = Leases(context, resident, record, withdraw=lambda _: None)
    for _ in range(3):
        with house.database.unit_of_work() as tx:
            claimed = shards.claim(tx, pool="default", device="CPU", holder="a", lease_s=60)
        assert claimed is not None
        work = leases.hold(claimed)
        while (line := work.next_line()) is not None:
            work.add(failed_record(line, Failed(500, "x", "x")))
    for tries in (1, 2, 3):
        leases.write_what_is_due()
        assert len(store.brought) == tries
        clock.moved_s += 1.0
    assert store.shards == ["00000000", "00000001", "00000002"]
