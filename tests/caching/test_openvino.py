"""What OpenVINO itself does with its cache, on a CPU, and what is made of it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
from msgspec import structs

from batchgen.domain.caches import CacheState
from batchgen.engines.openvino.blobs import blob_directory
from batchgen.engines.openvino.identity import compile_identity
from batchgen.engines.spec import CacheEviction, DraftModel, OpenVinoSpec, SchedulerSettings
from batchgen.storage.cache_directory import CacheDirectory, EntryNote
from tests.caching.conftest import Workshop
from tests.house import MODELS

DEMO = MODELS / "orders-qwen3-2m-ov"
DRAFT = MODELS / "orders-qwen3-1m-ov"
REAL = {"BATCHGEN_HOST_COMMAND": ""}


def load(workshop: Workshop, env: dict[str, str] | None = None, **asked: Any) -> dict[str, Any]:
    worker = workshop.start("CPU", DEMO, env=REAL | (env or {}), **asked)
    applied = worker.applied()
    worker.end()
    return applied


def test_a_cpu_does_not_take_paged_attention_back_and_its_cache_is_given_up(
    workshop: Workshop,
) -> None:
    first, second, third = (load(workshop) for _ in range(3))
    assert (first["cache_state"], first["config"]["cache_note"]) == ("cold", None)
    assert first["cache_bytes"] > 1_000_000
    assert second["cache_state"] == "cold"
    assert "compiled the model anew although it was kept" in second["config"]["cache_note"]
    assert third["cache_state"] == "off"
    assert workshop.entry().state is CacheState.REJECTED
    assert workshop.entry().bytes == 0
    assert workshop.blobs() == []
    assert first["model_hash"] == workshop.entry().identity["model_hash"]


def test_a_model_that_is_taken_back_is_warm_the_second_time(tmp_path: Path) -> None:
    cache = CacheDirectory.open(tmp_path, make=True)
    note = EntryNote(namespace="entry", identity={}, model_path=str(DEMO))

    def load() -> tuple[str, list[Path], Path]:
        own = cache.begin_load("here", "entry", cache.read("entry"))
        directory = blob_directory(OpenVinoSpec(path=str(DEMO), cache_dir=str(own)))
        # As the stateful pipelines compile it, without paged attention.
        ov.Core().compile_model(DEMO / "openvino_model.xml", "CPU", {"CACHE_DIR": str(own)})
        return directory.state(), cache.written(own), own

    state, written, own = load()
    assert (state, len(written)) == ("cold", 1)
    kept = cache.checked(written, lambda: None)
    cache.keep("entry", structs.replace(note, files=kept), own, kept)
    # OpenVINO reads through the links, and leaves them alone.
    assert load()[:2] == ("warm", [])


def test_settings_that_do_not_reach_the_compiler_share_a_namespace() -> None:
    def identity(**settings: Any) -> Any:
        return compile_identity(OpenVinoSpec(path=str(DEMO), **settings), None)

    plain = identity()
    sizes = SchedulerSettings(max_num_seqs=4, num_kv_blocks=100, enable_prefix_caching=True)
    assert identity(scheduler_config=sizes) == plain
    # A CPU keeps the model as it is before any of these takes effect.
    assert identity(kv_cache_precision="f16") == plain
    assert identity(runtime_config={"INFERENCE_NUM_THREADS": 1}) == plain
    evicting = SchedulerSettings(use_cache_eviction=True, cache_eviction=CacheEviction())
    assert identity(scheduler_config=evicting).namespace == plain.namespace
    assert identity(scheduler_config=evicting).variant != plain.variant
    assert identity(runtime_config={"CACHE_MODE": "OPTIMIZE_SIZE"}).namespace != plain.namespace
    assert identity(draft=DraftModel(path=str(DRAFT))).namespace != plain.namespace


def test_the_identity_names_device_driver_and_versions() -> None:
    identity = compile_identity(OpenVinoSpec(path=str(DEMO), device="HETERO:CPU"), None)
    core = ov.Core()
    (device,) = identity.devices
    assert identity.device == "HETERO:CPU"
    assert device.name == core.get_property("CPU", "FULL_DEVICE_NAME")
    assert device.driver == core.get_versions("CPU")["CPU"].build_number
    assert identity.libraries["openvino"] == ov.__version__


def test_hashes_of_unchanged_files_are_kept(tmp_path: Path) -> None:
    spec = OpenVinoSpec(path=str(DEMO))
    first = compile_identity(spec, tmp_path)
    (note,) = tmp_path.glob("*/*.json")
    written = note.stat().st_mtime_ns
    assert compile_identity(spec, tmp_path) == first
    assert note.stat().st_mtime_ns == written


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    path = tmp_path / "tiny"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("only the superuser mounts a file system")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_costs_the_cache_and_no_more(workshop: Workshop, tiny_disk: Path) -> None:
    env = {"BATCHGEN_CACHE_DIR": str(tiny_disk)}
    applied = load(workshop, env)
    assert applied["cache_state"] == "cold"
    assert "the disk has" in applied["config"]["cache_note"]
    assert list(tiny_disk.glob("*/*.blob")) == []
    (tiny_disk / "ballast").write_bytes(bytes(shutil.disk_usage(tiny_disk).free))
    applied = load(workshop, env)
    assert applied["cache_state"] == "off"
    assert "No space left" in applied["config"]["cache_note"]
