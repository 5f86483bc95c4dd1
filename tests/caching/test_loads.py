"""Loads of several workers around one cache: who compiles, who waits, what goes wrong."""

import os
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from batchgen.domain.caches import CacheState
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.storage import caches
from tests.caching.conftest import Workshop
from tests.waiting import until


def test_the_second_load_is_warm(workshop: Workshop) -> None:
    model = workshop.model()
    cold = workshop.load("GPU.0", model)
    warm = workshop.load("GPU.0", model)
    assert (cold["cache_state"], warm["cache_state"]) == ("cold", "warm")
    assert workshop.compilations(model) == 1
    assert warm["config"]["cache_note"] is None
    assert warm["cache_bytes"] == workshop.entry().bytes == 1_000
    assert Path(warm["config"]["cache_dir"]) == workshop.root / workshop.entry().key.name


def test_two_workers_that_load_the_same_model_at_once_compile_it_once(workshop: Workshop) -> None:
    model, gate = workshop.model(), workshop.home / "gate"
    first = workshop.start("GPU.0", model, GATE=str(gate))
    workshop.compiling(model)
    second = workshop.start("GPU.1", model, GATE=str(gate))
    until(lambda: "GPU.1" in str(workshop.entry().in_use_by))
    assert workshop.entry().writer is not None
    assert "GPU.0" in workshop.entry().writer
    gate.touch()
    states = (first.applied()["cache_state"], second.applied()["cache_state"])
    assert states == ("cold", "warm")
    assert workshop.compilations(model) == 1
    assert workshop.entry().writer is None


def test_a_load_that_has_waited_long_enough_goes_uncached(workshop: Workshop) -> None:
    model, gate = workshop.model(), workshop.home / "gate"
    workshop.start("GPU.0", model, GATE=str(gate))
    workshop.compiling(model)
    impatient = workshop.start("GPU.1", model, env={"BATCHGEN_CACHE_WAIT_S": "0.3"})
    applied = impatient.applied()
    assert applied["cache_state"] == "off"
    assert "GPU.0 was still at it after 0.3 s" in applied["config"]["cache_note"]


def test_the_lease_of_a_killed_writer_ends_and_the_next_one_writes(workshop: Workshop) -> None:
    model = workshop.model()
    writer = workshop.start("GPU.0", model, GATE=str(workshop.home / "never"))
    workshop.compiling(model)
    writer.kill()
    assert workshop.blobs() == []
    applied = workshop.load("GPU.1", model)
    assert applied["cache_state"] == "cold"
    assert applied["config"]["cache_note"] is None
    assert len(workshop.blobs()) == 1
    assert workshop.load("GPU.0", model)["cache_state"] == "warm"
    # What the killed one had begun is swept away by its successor.
    assert [p.name for p in (workshop.root / "loads").iterdir()] == []


def test_specs_that_differ_in_scheduler_settings_share_an_entry(workshop: Workshop) -> None:
    model = workshop.model()
    workshop.load("GPU.0", model, scheduler_config={"max_num_seqs": 8})
    assert (
        workshop.load("GPU.0", model, scheduler_config={"max_num_seqs": 64})["cache_state"]
        == "warm"
    )
    # Eviction changes the graph: another compiled model, in the same entry.
    evicting = {"use_cache_eviction": True}
    assert workshop.load("GPU.0", model, scheduler_config=evicting)["cache_state"] == "cold"
    assert workshop.load("GPU.0", model, scheduler_config=evicting)["cache_state"] == "warm"
    assert workshop.load("GPU.0", model)["cache_state"] == "warm"
    assert workshop.entry().n_files == 2


@pytest.mark.parametrize("other", [{"DRIVER": "2.0"}, {"NUM_STREAMS": 2}])
def test_another_driver_or_property_has_an_entry_of_its_own(
    workshop: Workshop, other: dict[str, object]
) -> None:
    model = workshop.model()
    workshop.load("GPU.0", model)
    assert workshop.load("GPU.0", model, **other)["cache_state"] == "cold"
    assert len(workshop.entries()) == 2


def test_other_weights_have_an_entry_of_their_own(workshop: Workshop) -> None:
    workshop.load("GPU.0", workshop.model())
    assert workshop.load("GPU.0", workshop.model(content="better"))["cache_state"] == "cold"
    assert len(workshop.entries()) == 2


@pytest.mark.parametrize("how", ["truncated", "garbage", "missing", "note"])
def test_a_damaged_entry_is_set_aside_and_the_model_compiled_anew(
    workshop: Workshop, how: str
) -> None:
    model = workshop.model()
    workshop.load("GPU.0", model)
    (blob,) = workshop.blobs()
    match how:
        case "truncated":
            os.truncate(blob, 10)
        case "garbage":
            blob.write_bytes(os.urandom(1_000))
        case "missing":
            blob.unlink()
        case _:
            (blob.parent / "entry.json").write_text("{")
    applied = workshop.load("GPU.0", model)
    assert applied["cache_state"] == "cold"
    assert "set aside" in applied["config"]["cache_note"]
    (aside,) = [e for e in workshop.entries() if e.state is CacheState.QUARANTINED]
    assert aside.reason
    assert (workshop.root / aside.key.name).is_dir()
    assert workshop.load("GPU.0", model)["cache_state"] == "warm"


def test_an_entry_that_kills_the_engine_is_set_aside(workshop: Workshop) -> None:
    model = workshop.model()
    workshop.load("GPU.0", model)
    applied = workshop.load("GPU.0", model, DIES_WARM=True)
    assert applied["cache_state"] == "cold"
    assert "loaded only without the entry" in applied["config"]["cache_note"]
    assert sorted(e.state for e in workshop.entries()) == ["quarantined", "usable"]
    assert workshop.compilations(model) == 2


def test_an_engine_that_loads_with_no_entry_leaves_the_entry_alone(workshop: Workshop) -> None:
    model = workshop.model()
    workshop.load("GPU.0", model)
    assert "scripted" in workshop.load("GPU.0", model, FAILS=True)["failed"]
    assert [e.state for e in workshop.entries()] == ["usable"]
    assert workshop.entry().writer is None
    assert workshop.load("GPU.0", model)["cache_state"] == "warm"


def test_a_runtime_that_compiles_anew_whatever_it_finds_is_spared_the_writing(
    workshop: Workshop,
) -> None:
    model = workshop.model()
    workshop.load("GPU.0", model)
    again = workshop.load("GPU.0", model, IMPORTS=False)
    assert again["cache_state"] == "cold"
    assert "of no use" in again["config"]["cache_note"]
    assert workshop.entry().state is CacheState.REJECTED
    assert workshop.blobs() == []
    off = workshop.load("GPU.0", model, IMPORTS=False)
    assert off["cache_state"] == "off"
    assert "compiled the model anew although it was kept" in off["config"]["cache_note"]


@pytest.mark.parametrize("what", ["file", "missing parent", "not to be written"])
def test_a_root_that_cannot_be_used_costs_the_cache_and_no_more(
    workshop: Workshop, what: str
) -> None:
    root = workshop.home / "elsewhere"
    match what:
        case "file":
            root.write_text("mine")
        case "missing parent":
            root = root / "not" / "there"
        case _:
            root = Path("/sys/kernel")  # even the superuser makes no folder there
    before = sorted(workshop.home.iterdir())
    model = workshop.model()
    worker = workshop.start("GPU.0", model, env={"BATCHGEN_CACHE_DIR": str(root)})
    applied = worker.applied()
    worker.end()
    assert applied["cache_state"] == "off"
    assert str(root) in applied["config"]["cache_note"]
    assert sorted(workshop.home.iterdir()) == sorted([*before, model])
    assert not workshop.root.exists()


def test_a_database_that_goes_away_while_compiling_breaks_no_load(
    workshop: Workshop, postgres: EmbeddedPostgres
) -> None:
    model, gate = workshop.model(), workshop.home / "gate"
    worker = workshop.start("GPU.0", model, GATE=str(gate))
    workshop.compiling(model)
    name = workshop.database.engine.url.database
    admin = create_engine(postgres.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        connection.execute(
            text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        )
    admin.dispose()
    gate.touch()
    applied = worker.applied()
    assert applied["cache_state"] == "cold"
    assert "not kept: the database cannot do it now" in applied["config"]["cache_note"]
    assert workshop.blobs() == []


def test_a_lease_that_was_lost_while_compiling_breaks_no_load(workshop: Workshop) -> None:
    model, gate = workshop.model(), workshop.home / "gate"
    worker = workshop.start("GPU.0", model, GATE=str(gate))
    workshop.compiling(model)
    entry = workshop.entry()
    # As after an outage of more than a lease: another one has the entry.
    with workshop.database.unit_of_work() as tx:
        tx.execute(
            caches.caches.update().values(
                writer="another", writer_token="00000000-0000-0000-0000-000000000001"
            )
        )
    gate.touch()
    applied = worker.applied()
    worker.end()
    assert applied["cache_state"] == "cold"
    assert "another worker took over" in applied["config"]["cache_note"]
    assert workshop.blobs() == []
    assert entry.key == workshop.entry().key
