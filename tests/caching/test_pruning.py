"""What is listed of the caches, what is stale, and what pruning removes and never removes."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchgen.client import Client
from batchgen.domain.errors import InvalidRequest
from batchgen.services import caches
from batchgen.settings import Settings
from batchgen.storage import models
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.caching.conftest import Workshop
from tests.house import House
from tests.waiting import until


@pytest.fixture
def client(workshop: Workshop, api_server: str, admin_key: str) -> Iterator[Client]:
    with Client(api_server, admin_key) as made:
        yield made


def register(database: Database, path: Path, name: str = "orders") -> None:
    with database.unit_of_work() as tx:
        models.insert(
            tx,
            model_id=f"model_{name}",
            name=name,
            spec={"engine": "openvino", "path": str(path)},
            fingerprint=name,
            content_hash=None,
            pool="default",
            device=None,
        )


def test_the_list_tells_size_maker_and_use(
    workshop: Workshop, client: Client, database: Database
) -> None:
    model = workshop.model()
    register(database, model)
    worker = workshop.start("GPU.0", model)
    worker.applied()
    (held,) = client.caches()
    assert (held["bytes"], held["files"], held["models"]) == (1_000, 1, ["orders"])
    assert (held["model_hash"], held["device"]) == ("weights", "GPU")
    assert held["devices"][0]["driver"] == "1.0"
    assert held["libraries"] == {"openvino": "2026.4.1"}
    assert held["busy"] and held["in_use_by"][0].endswith("/GPU.0")
    assert held["stale"] is None
    worker.end()
    (left,) = client.caches()
    assert not left["busy"]


def test_pruning_never_touches_an_entry_in_use(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    used, unused = workshop.model("used"), workshop.model("unused", content="other")
    workshop.load("GPU.1", unused)
    worker = workshop.start("GPU.0", used)
    worker.applied()
    gone = client.prune_caches({"max_bytes": 0, "older_than_s": 0, "stale": True})
    assert [c["model_hash"] for c in gone["data"]] == ["other"]
    assert caches.remove_marked(database, settings) == 1
    assert len(workshop.blobs()) == 1
    worker.end()
    client.prune_caches({"max_bytes": 0})
    assert caches.remove_marked(database, settings) == 1
    assert workshop.blobs() == []
    assert client.caches() == []


def test_what_a_load_takes_up_after_it_was_marked_stays(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    model = workshop.model()
    workshop.load("GPU.0", model)
    client.prune_caches({"max_bytes": 0})
    assert client.caches()[0]["leaving"]
    assert workshop.load("GPU.0", model)["cache_state"] == "warm"
    assert caches.remove_marked(database, settings) == 0
    assert not client.caches()[0]["leaving"]


def test_an_entry_that_is_being_written_is_not_removed(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    model = workshop.model()
    worker = workshop.start("GPU.0", model, GATE=str(workshop.home / "never"))
    workshop.compiling(model)
    assert client.prune_caches({"max_bytes": 0, "older_than_s": 0, "stale": True})["data"] == []
    worker.kill()
    # Neither its lease nor its device lives on: then the entry may go.
    until(lambda: client.prune_caches({"older_than_s": 0})["data"])
    assert caches.remove_marked(database, settings) == 1


def test_a_dry_run_removes_nothing(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    workshop.load("GPU.0", workshop.model())
    told = client.prune_caches({"max_bytes": 0, "dry_run": True})
    assert (told["bytes"], len(told["data"])) == (1_000, 1)
    assert caches.remove_marked(database, settings) == 0
    assert len(workshop.blobs()) == 1


def test_pruning_needs_a_wish(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="say what to remove"):
        client.prune_caches({})


def test_what_was_not_used_for_longest_goes_first_and_only_as_much_as_needed(
    workshop: Workshop, settings: Settings, database: Database
) -> None:
    for name in ("a", "b", "c"):
        register(database, workshop.model(name, content=name), name)
    for name in ("a", "b", "c", "a"):
        workshop.load("GPU.0", workshop.home / name)
    small = settings.model_copy(update={"cache_max_bytes": 2_000})
    assert caches.keep_budget(database, small) == 1
    assert caches.remove_marked(database, small) == 1
    assert [e.identity["model_hash"] for e in workshop.entries()] == ["a", "c"]
    assert caches.keep_budget(database, small) == 0


def test_why_an_entry_is_stale_is_said(
    workshop: Workshop, client: Client, database: Database
) -> None:
    model = workshop.model()
    register(database, model)
    workshop.load("GPU.0", model)
    workshop.load("GPU.0", model, DRIVER="2.0")
    assert _stale(client) == [None, "made with driver 1.0, the device has 2.0 now"]
    workshop.model(content="better")
    workshop.load("GPU.0", model, DRIVER="2.0")
    assert _stale(client) == [None, *["the model has other content now"] * 2]
    gone = client.prune_caches({"stale": True})["data"]
    assert len(gone) == 2
    with database.unit_of_work() as tx:
        models.retire(tx, "orders")
    assert _stale(client)[0] == "no registered model lies where its model lay"


def test_quarantined_entries_are_listed_and_pruned_with_the_stale_ones(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    model = workshop.model()
    register(database, model)
    workshop.load("GPU.0", model)
    workshop.blobs()[0].write_bytes(b"")
    workshop.load("GPU.0", model)
    aside = [c for c in client.caches() if c["state"] == "quarantined"]
    assert "0 bytes, 1000 were written" in aside[0]["stale"]
    client.prune_caches({"stale": True})
    assert caches.remove_marked(database, settings) == 1
    assert list((workshop.root / "quarantine").iterdir()) == []
    assert len(workshop.blobs()) == 1


def test_entries_that_the_database_has_lost_are_taken_in(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    workshop.load("GPU.0", workshop.model())
    before = client.caches()
    with database.unit_of_work() as tx:
        tx.execute(caches.caches.caches.delete())
    assert client.caches() == []
    caches.remove_marked(database, settings)
    assert _but_for_use(client.caches()) == _but_for_use(before)
    assert workshop.load("GPU.0", workshop.model())["cache_state"] == "warm"


def test_an_entry_that_somebody_removed_by_hand_is_forgotten(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    workshop.load("GPU.0", workshop.model())
    shutil.rmtree(workshop.blobs()[0].parent)
    caches.remove_marked(database, settings)
    assert client.caches() == []
    assert workshop.load("GPU.0", workshop.model())["cache_state"] == "cold"


def test_an_entry_that_cannot_be_removed_keeps_no_other_from_it(
    workshop: Workshop, settings: Settings, database: Database
) -> None:
    for name in ("a", "b"):
        workshop.load("GPU.0", workshop.model(name, content=name))
    first = min(blob.parent for blob in workshop.blobs())
    shutil.rmtree(first)
    first.write_text("no directory")
    caches.prune(database, settings, caches.Wish(max_bytes=0), dry_run=False)
    assert caches.remove_marked(database, settings) == 1
    assert workshop.blobs() == []


def test_an_entry_that_says_something_else_of_itself_is_not_taken_in(
    workshop: Workshop, client: Client, settings: Settings, database: Database
) -> None:
    workshop.load("GPU.0", workshop.model())
    strange = workshop.root / "strange"
    strange.mkdir()
    note = {"namespace": "strange", "identity": {"model_hash": "x"}, "model_path": "/m"}
    (strange / "entry.json").write_text(json.dumps(note))
    caches.remove_marked(database, settings)
    assert [c["model_hash"] for c in client.caches()] == ["weights"]


def test_the_control_worker_of_a_host_without_the_directory_leaves_it_to_those_that_have_it(
    workshop: Workshop, settings: Settings, database: Database, store: ObjectStore
) -> None:
    workshop.load("GPU.0", workshop.model())
    elsewhere = settings.model_copy(
        update={"data_dir": workshop.home / "other host", "cache_max_bytes": 1}
    )
    assert caches.keep_budget(database, elsewhere) == 1
    assert caches.remove_marked(database, elsewhere) == 0
    assert not elsewhere.cache_root.exists()
    assert len(workshop.blobs()) == 1
    # A device's worker does it when it is idle.
    worker = House(database, store, settings).worker("GPU.0")
    worker.idle()
    worker.leave()
    assert workshop.blobs() == []


def _stale(client: Client) -> list[str | None]:
    return [c["stale"] for c in client.caches()]


def _but_for_use(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    at = {"created_at", "last_used_at", "unused_s"}
    return [{k: v for k, v in c.items() if k not in at} for c in found]
