"""What can be registered, what a revision is, and that a job runs on what was registered."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchgen.domain.errors import InvalidRequest, LoadFailed, UnknownOption
from batchgen.domain.jobs import Fault, Model
from batchgen.domain.states import JobState
from batchgen.engines.registry import make_engine
from batchgen.engines.spec import OpenVinoSpec, decode_spec
from batchgen.services import models
from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.house import MODELS, House, chat_lines

TARGET, DRAFT = "orders-qwen3-2m-ov", "orders-qwen3-1m-ov"
Copy = Callable[..., Path]


@pytest.fixture
def house(database: Database, store: ObjectStore, settings: Settings) -> House:
    return House(database, store, settings)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of a demo model, to be spoilt."""

    def copied(name: str = TARGET, to: str = "model") -> Path:
        return Path(shutil.copytree(MODELS / name, tmp_path / to))

    return copied


def add(house: House, path: Path, **more: Any) -> Model:
    device = more.pop("device", None)
    spec = {"engine": "openvino", "path": str(path), **more}
    return models.register(house.database, house.settings, name="m", spec=spec, device=device)


def warnings(house: House, model: Model) -> list[str]:
    with house.database.unit_of_work() as tx:
        return models.warnings(tx, house.settings, model)


def of_workers(house: House, model: Model) -> list[str]:
    """The warnings that are of the fleet, not of the settings."""
    return [text for text in warnings(house, model) if "live" in text]


def resolve(house: House, **overrides: Any) -> models.Resolved:
    with house.database.unit_of_work() as tx:
        return models.resolve(tx, "m", overrides)


def touch_later(file: Path) -> None:
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


# -- what may lie in a model's directory ---------------------------------------------------------


class Payload:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "original/consolidated.00.pth", "optimizer.pkl"]
)
def test_pickles_beside_a_model_are_refused_unread(
    house: House, copy: Copy, tmp_path: Path, name: str
) -> None:
    directory, mark = copy(), tmp_path / "mark"
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(InvalidRequest, match="holds pickles") as refused:
        add(house, directory)
    assert name in refused.value.message
    assert not mark.exists()


def test_weights_that_are_a_torch_archive_are_refused(house: House, copy: Copy) -> None:
    directory = copy()
    (directory / "openvino_model.bin").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(InvalidRequest, match=r"pickles \(openvino_model\.bin\)"):
        add(house, directory)


def test_code_of_a_model_is_never_run_and_said_to_be_there(
    house: House, copy: Copy, tmp_path: Path
) -> None:
    directory, mark = copy(), tmp_path / "mark"
    config = json.loads((directory / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_x.X"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "modeling_x.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    noted = warnings(house, add(house, directory))
    assert any("auto_map" in text and "never run" in text for text in noted)
    assert any("modeling_x.py" in text for text in noted)
    spec = OpenVinoSpec(path=str(directory), runtime_config={"INFERENCE_NUM_THREADS": 1})
    engine = make_engine(spec)
    engine.load(spec)
    engine.close()
    assert not mark.exists()


def test_there_is_no_trusting_remote_code(house: House) -> None:
    with pytest.raises(InvalidRequest, match="never run"):
        add(house, MODELS / TARGET, trust_remote_code=True)


def test_neither_a_directory_nor_a_file_may_lead_out_of_the_allowed_roots(
    database: Database, store: ObjectStore, settings: Settings, copy: Copy, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    inside, outside = copy(to="root/model"), copy(to="outside")
    house = House(database, store, settings.model_copy(update={"model_roots": str(root)}))
    assert add(house, inside).revision == 1
    (root / "link").symlink_to(outside)
    for path in (outside, root / "link", root / "model" / ".." / ".." / "outside"):
        with pytest.raises(InvalidRequest, match="not under an allowed root"):
            add(house, path)
    with pytest.raises(InvalidRequest, match="allowed root") as refused:
        add(house, inside, draft={"path": str(outside), "num_assistant_tokens": 2})
    assert refused.value.param == "draft.path"
    (inside / "tokenizer.json").unlink()
    (inside / "tokenizer.json").symlink_to(outside / "tokenizer.json")
    with pytest.raises(InvalidRequest, match=r"tokenizer\.json .* link out of"):
        add(house, inside)


def test_a_link_to_nothing_is_refused_and_later_shows_as_a_change(house: House, copy: Copy) -> None:
    path = copy()
    weights = path / "openvino_model.bin"
    kept = weights.rename(path.parent / "blob")
    weights.symlink_to(kept)
    assert add(house, path).revision == 1
    kept.unlink()
    with pytest.raises(InvalidRequest, match="have changed since") as refused:
        resolve(house)
    assert refused.value.code == "model_changed"
    with pytest.raises(InvalidRequest, match=r"openvino_model\.bin .* cannot be read"):
        add(house, path)


def test_a_path_that_means_nothing_to_the_server_is_refused(house: House) -> None:
    for path in ("~nobody-of-that-name/model", "/" + "x" * 300):
        with pytest.raises(InvalidRequest) as refused:
            add(house, Path(path))
        assert refused.value.param == "path"


def test_what_lies_beside_an_adapter_may_not_lead_out_of_the_allowed_roots(
    database: Database, store: ObjectStore, settings: Settings, copy: Copy, tmp_path: Path
) -> None:
    house = House(
        database, store, settings.model_copy(update={"model_roots": str(tmp_path / "root")})
    )
    model, adapter = copy(to="root/model"), tmp_path / "root" / "adapter.safetensors"
    adapter.write_bytes(b"")
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "root" / "adapter_config.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(InvalidRequest, match="link out of the allowed roots") as refused:
        add(house, model, lora={"path": str(adapter)})
    assert refused.value.param == "lora.path"


# -- revisions and their content -----------------------------------------------------------------


def test_a_revision_records_the_hashes_of_its_model_and_draft(house: House) -> None:
    draft = {"path": str(MODELS / DRAFT), "num_assistant_tokens": 2}
    made = add(house, MODELS / TARGET, draft=draft)
    assert made.content_hash is not None
    assert made.draft_content_hash is not None
    assert made.content_hash != made.draft_content_hash
    pinned = resolve(house).spec
    assert isinstance(pinned, OpenVinoSpec)
    assert pinned.draft is not None
    assert pinned.content_hash == made.content_hash
    assert pinned.draft.content_hash == made.draft_content_hash


def test_a_copy_has_the_same_content(house: House, copy: Copy) -> None:
    assert add(house, copy()).content_hash == add(house, MODELS / TARGET).content_hash


def test_changed_files_are_noticed_and_make_a_new_revision(house: House, copy: Copy) -> None:
    directory = copy()
    first = add(house, directory)
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(InvalidRequest, match=r"have changed .*\(chat_template\.jinja\)") as refused:
        resolve(house)
    assert refused.value.code == "model_changed"
    assert any("have changed" in text for text in warnings(house, first))
    second = add(house, directory)
    assert (second.revision, second.fingerprint) == (2, first.fingerprint)
    assert second.content_hash not in (None, first.content_hash)
    assert resolve(house).fingerprint not in (first.fingerprint, second.fingerprint)


def test_files_that_were_only_touched_stay_the_same_revision(house: House, copy: Copy) -> None:
    directory = copy()
    first = add(house, directory)
    touch_later(directory / "openvino_model.bin")
    with pytest.raises(InvalidRequest, match="have changed"):
        resolve(house)
    again = add(house, directory)
    assert (again.id, again.content_hash) == (first.id, first.content_hash)
    assert resolve(house).model.id == first.id


def test_a_changed_adapter_is_noticed_and_makes_a_new_revision(
    house: House, tmp_path: Path
) -> None:
    file = tmp_path / "adapter.safetensors"
    file.write_bytes(b"one")
    first = add(house, MODELS / TARGET, lora={"path": str(file)})
    assert resolve(house).model.id == first.id
    file.write_bytes(b"another")
    with pytest.raises(InvalidRequest, match=r"\(lora/adapter\.safetensors\)"):
        resolve(house)
    second = add(house, MODELS / TARGET, lora={"path": str(file)})
    assert (second.revision, second.content_hash) == (2, first.content_hash)
    assert second.spec["lora"]["content_hash"] != first.spec["lora"]["content_hash"]
    assert second.fingerprint != first.fingerprint
    spec = decode_spec({**second.spec, "lora": first.spec["lora"]})
    with pytest.raises(LoadFailed, match="another LoRA adapter here than was registered"):
        make_engine(spec).load(spec)


def test_an_earlier_registration_without_a_content_gets_one(house: House, copy: Copy) -> None:
    directory = copy()
    first = add(house, directory)
    with house.database.unit_of_work() as tx:
        tx.exec_driver_sql("UPDATE models SET content_hash = NULL, seal = NULL")
    assert resolve(house).fingerprint == first.fingerprint
    again = add(house, directory)
    assert (again.id, again.content_hash, again.seal) == (first.id, first.content_hash, first.seal)


def test_a_large_model_is_hashed_after_its_registration(house: House, copy: Copy) -> None:
    directory = copy()
    with (directory / "openvino_extra.bin").open("wb") as file:
        file.truncate(300 * 2**20)
    (directory / "openvino_extra.xml").write_text("<net/>")
    assert add(house, directory).content_hash is None
    job = house.queue(chat_lines(1, model="m"))
    assert job.state is JobState.QUEUED
    assert job.engine_spec is not None
    known = resolve(house).model.content_hash
    assert known is not None
    assert job.engine_spec["content_hash"] == known
    assert add(house, directory).revision == 1


def test_an_engine_does_not_load_other_files_than_were_registered() -> None:
    spec = OpenVinoSpec(path=str(MODELS / TARGET), content_hash="0" * 32)
    with pytest.raises(LoadFailed, match=r"other files here than were registered .*copy"):
        make_engine(spec).load(spec)


def test_a_job_whose_model_changed_before_it_was_read_fails_with_the_reason(
    house: House, copy: Copy
) -> None:
    directory = copy()
    add(house, directory)
    job = house.submit(chat_lines(1, model="m"), model="m")
    touch_later(directory / "tokenizer.json")
    house.ingest(job.id)
    assert house.job(job.id).state is JobState.FAILED
    (fault,) = house.job(job.id).faults
    assert isinstance(fault, Fault)
    assert fault.code == "model_changed"


# -- overrides of a job --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        {"path": "/etc"},
        {"device": None},
        {"engine": "simulated"},
        {"cache_dir": "/tmp"},
        {"content_hash": "0"},
        {"draft": {"path": "/etc", "num_assistant_tokens": 1}},
        {"draft": {"content_hash": "0"}},
        {"lora": {"path": "/etc/passwd"}},
    ],
)
def test_a_job_names_nothing_on_the_machines(house: House, overrides: dict[str, Any]) -> None:
    add(house, MODELS / TARGET)
    with pytest.raises(InvalidRequest, match="a job cannot override") as refused:
        resolve(house, **overrides)
    assert str(refused.value.param).startswith("engine.")


def test_a_job_may_change_every_other_setting_and_is_told_what_cannot_work(house: House) -> None:
    draft = {"path": str(MODELS / DRAFT), "num_assistant_tokens": 2}
    made = add(house, MODELS / TARGET, draft=draft, scheduler_config={"max_num_seqs": 8})
    changed = resolve(house, scheduler_config={"num_kv_blocks": 9}, draft=None)
    assert isinstance(changed.spec, OpenVinoSpec)
    assert changed.spec.scheduler_config.max_num_seqs == 8
    assert changed.spec.scheduler_config.num_kv_blocks == 9
    assert changed.spec.draft is None
    assert changed.model.id == made.id
    with pytest.raises(InvalidRequest, match="exclude each other") as refused:
        resolve(house, prompt_lookup={"num_assistant_tokens": 2})
    assert refused.value.code == "unusable_engine"
    with pytest.raises(UnknownOption, match="max_num_seqs"):
        resolve(house, scheduler_config={"max_num_seq": 8})


# -- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{"device": "GPU0"}, {"device": "HETERO:GPU.0,"}])
def test_a_malformed_device_is_refused(house: House, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="is no device") as refused:
        add(house, MODELS / TARGET, **more)
    assert refused.value.param == "device"
    draft = {"path": str(MODELS / DRAFT), "num_assistant_tokens": 2, **more}
    with pytest.raises(InvalidRequest, match="is no device") as refused:
        add(house, MODELS / TARGET, draft=draft)
    assert refused.value.param == "draft.device"


def test_a_model_over_several_devices_goes_to_the_worker_of_the_first(house: House) -> None:
    made = add(house, MODELS / TARGET, device="HETERO:CPU,GPU.1")
    assert (made.device, made.spec["device"]) == ("CPU", "HETERO:CPU,GPU.1")
    free = add(house, MODELS / TARGET, device="AUTO:-NPU")
    assert (free.device, free.spec["device"]) == (None, "AUTO:-NPU")


def test_a_worker_of_just_that_device_string_serves_it(house: House) -> None:
    worker = house.worker("HETERO:CPU,GPU.1")
    try:
        made = add(house, MODELS / TARGET, device="HETERO:CPU,GPU.1")
    finally:
        worker.leave()
    assert made.device == "HETERO:CPU,GPU.1"


def test_devices_that_nobody_serves_are_named_with_those_that_are_there(house: House) -> None:
    made = add(house, MODELS / TARGET, device="HETERO:GPU.0,GPU.1,CPU")
    (alone,) = of_workers(house, made)
    assert "no worker of pool 'default' is live" in alone
    worker = house.worker("CPU")
    other = house.worker("GPU.1")
    try:
        (nobody,) = of_workers(house, made)
        unbound = add(house, MODELS / TARGET)
        assert of_workers(house, unbound) == []
        free = models.register(house.database, house.settings, name="free", spec=made.spec)
        (unserved,) = of_workers(house, free)
    finally:
        worker.leave()
        other.leave()
    assert "serves GPU.0: its jobs wait for one; there are: CPU, GPU.1" in nobody
    assert unserved == "GPU.0 is served by no live worker; there are: CPU, GPU.1"


def test_a_machine_with_other_files_serves_no_line_of_the_job(house: House, copy: Copy) -> None:
    directory = copy()
    add(house, directory, runtime_config={"INFERENCE_NUM_THREADS": 1})
    job = house.queue(chat_lines(2, model="m"))
    (directory / "generation_config.json").write_text("{}")
    worker = house.worker()
    try:
        worker.serve()
    finally:
        worker.leave()
    house.finalize(job.id)
    assert house.codes(job.id) == {"r0": "engine_load_failed", "r1": "engine_load_failed"}
    assert "other files here than were registered" in json.dumps(house.errors(job.id))
