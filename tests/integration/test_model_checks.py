"""Checks of models: what a device makes of one, and who waits for whom."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from batchgen.domain.checks import Check, CheckState
from batchgen.domain.errors import InvalidRequest, LostLease, NotFound
from batchgen.domain.ids import DeviceId, LeaseToken, Project
from batchgen.domain.jobs import Device
from batchgen.domain.states import JobState
from batchgen.services import model_checks
from batchgen.services.model_checks import Asked
from batchgen.storage import devices
from batchgen.storage import model_checks as stored
from tests.house import MODEL, PROJECT, House, chat_lines
from tests.waiting import until


def ask(house: House, **asked: Any) -> Check:
    wanted = Asked(**({"project": PROJECT, "model": MODEL} | asked))
    return model_checks.ask(house.database, house.bells, wanted)


def look(house: House, check: Check) -> Check:
    return model_checks.look(house.database, house.settings, check.id, PROJECT)


def serve(house: House, **worker: str) -> None:
    made = house.worker(**worker)
    try:
        made.serve()
    finally:
        made.leave()


def late(house: House, check: Check, column: str) -> None:
    """Its time is over."""
    with house.database.unit_of_work() as tx:
        tx.execute(
            text(f"UPDATE model_checks SET {column} = now() - interval '1 s' WHERE id = :id"),
            {"id": check.id},
        )


def test_a_check_loads_the_model_generates_once_and_tells_what_was_applied(house: House) -> None:
    house.register()
    check = ask(house, prompt="say it", max_tokens=5)
    assert check.state is CheckState.WAITING
    serve(house)
    ended = look(house, check)
    assert ended.state is CheckState.PASSED, ended.reason
    report = ended.report
    assert report is not None
    assert report["applied"]["engine"] == "simulated"
    assert report["applied"]["load_s"] >= 0
    assert report["generation"]["output_tokens"] == 5
    assert len(report["generation"]["text"]) == 5
    assert report["stats"]["steps"] > 0
    assert ended.holder == report["device"]
    assert ended.ended_at is not None


@pytest.mark.parametrize(
    ("engine", "directory", "tokens"),
    [("openvino", "random-seer-ov", 4), ("openvino-embeddings", "random-embedder-ov", 0)],
)
def test_models_that_see_and_models_that_embed_are_checked_as_well(
    house: House, engine: str, directory: str, tokens: int
) -> None:
    path = Path(__file__).parents[1] / "models" / directory
    house.register(engine=engine, path=str(path))
    check = ask(house, max_tokens=4)
    serve(house)
    ended = look(house, check)
    assert (ended.state, ended.reason) == (CheckState.PASSED, None)
    assert ended.report is not None
    assert ended.report["generation"]["output_tokens"] == tokens


def test_the_engine_of_a_check_is_warm_for_the_jobs_after(house: House) -> None:
    house.register()
    check = ask(house)
    worker = house.worker()
    try:
        worker.serve()
        pid = worker.engine_pid
        assert look(house, check).state is CheckState.PASSED
        house.queue(chat_lines(3))
        worker.serve()
        assert pid is not None
        assert worker.engine_pid == pid
    finally:
        worker.leave()


def test_a_model_that_cannot_be_loaded_fails_its_check_with_the_reason(house: House) -> None:
    house.register()
    with house.database.unit_of_work() as tx:
        tx.execute(text("""UPDATE models SET spec = spec || '{"path": "/nonexistent"}'"""))
    check = ask(house)
    serve(house)
    ended = look(house, check)
    assert ended.state is CheckState.FAILED
    assert ended.reason is not None
    assert "/nonexistent" in ended.reason
    assert ended.report is None


def test_an_engine_that_dies_at_the_first_request_fails_its_check(house: House) -> None:
    house.register(rules=[{"contains": "say it", "action": "crash"}])
    check = ask(house, prompt="say it")
    serve(house)
    ended = look(house, check)
    assert ended.state is CheckState.FAILED
    assert "signal 9" in (ended.reason or "")


SILENT = """
import sys
from batchgen.engines.host import main
from batchgen.engines.simulated.engine import SimulatedEngine
from batchgen.engines.simulated.script import hang

class Silent(SimulatedEngine):
    def stats(self):
        return super().stats() if self.has_work() else hang()

sys.exit(main(lambda spec: Silent()))
"""


def test_an_engine_that_hangs_once_it_has_answered_fails_its_check(
    house: House, tmp_path: Path
) -> None:
    host = tmp_path / "host.py"
    host.write_text(SILENT)
    command = {"host_command": f"{sys.executable} {host}"}
    settings = house.settings.model_copy(update=command)
    site = House(house.database, house.store, settings)
    site.register()
    check = ask(site)
    serve(site)
    ended = look(site, check)
    assert ended.state is CheckState.FAILED
    assert "says nothing more" in (ended.reason or "")


def test_a_prompt_that_is_too_long_fails_its_check(house: House) -> None:
    house.register(max_model_len=16)
    check = ask(house, prompt="x" * 100)
    serve(house)
    ended = look(house, check)
    assert ended.state is CheckState.FAILED
    assert "maximum context length is 16" in (ended.reason or "")


def test_settings_that_cannot_work_trouble_no_device(house: House) -> None:
    house.register()
    with house.database.unit_of_work() as tx:
        tx.execute(text("""UPDATE models SET spec = spec || '{"max_num_seqs": 0}'"""))
    with pytest.raises(InvalidRequest, match="max_num_seqs"):
        ask(house)
    with pytest.raises(NotFound, match="no model"):
        ask(house, model="nobody")


def test_jobs_go_before_checks(house: House) -> None:
    house.register()
    check = ask(house)
    job = house.queue(chat_lines(25))
    serve(house)
    house.finalize(job.id)
    ended, done = look(house, check), house.job(job.id)
    assert done.state is JobState.COMPLETED
    assert ended.state is CheckState.PASSED
    with house.database.unit_of_work() as tx:
        last_line = tx.execute(text("SELECT max(created_at) FROM segments")).scalar_one()
        check_began = tx.execute(text("SELECT max(started_at) FROM sessions")).scalar_one()
    assert last_line < check_began


def test_a_check_that_nobody_takes_says_that_no_device_is_alive(house: House) -> None:
    house.register()
    check = ask(house)
    assert look(house, check).state is CheckState.WAITING
    late(house, check, "expires_at")
    ended = look(house, check)
    assert ended.state is CheckState.EXPIRED
    assert "no device of pool 'default' is alive" in (ended.reason or "")
    serve(house)
    assert look(house, check) == ended


def test_a_check_of_a_device_that_nobody_serves_names_those_that_are_served(house: House) -> None:
    house.register()
    worker = house.worker(device="CPU")
    try:
        check = ask(house, device="GPU.3")
        worker.serve()
        late(house, check, "expires_at")
        reason = look(house, check).reason or ""
    finally:
        worker.leave()
    assert "serves device 'GPU.3'" in reason
    assert "they serve: CPU" in reason


def test_a_check_that_waits_for_a_busy_device_says_so(house: House) -> None:
    house.register(step_s=0.05, max_num_seqs=1)
    house.queue(chat_lines(200))
    worker = house.worker()
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        until(lambda: _device(house).state == "serving")
        check = ask(house)
        late(house, check, "expires_at")
        reason = look(house, check).reason or ""
    finally:
        worker.leave()
        thread.join()
    assert "was busy" in reason
    assert "is serving" in reason


def test_a_check_may_name_one_device_of_several(house: House) -> None:
    house.register()
    check = ask(house, device="GPU.1")
    serve(house, device="CPU")
    assert look(house, check).state is CheckState.WAITING
    serve(house, device="GPU.1")
    ended = look(house, check)
    assert ended.state is CheckState.PASSED
    assert (ended.holder or "").endswith("/GPU.1")


def test_another_worker_takes_the_check_of_one_that_was_lost(house: House) -> None:
    house.register()
    check = ask(house)
    _claim(house, "gone/CPU")
    assert look(house, check).state is CheckState.RUNNING
    late(house, check, "lease_until")
    assert look(house, check).state is CheckState.WAITING
    serve(house)
    assert look(house, check).state is CheckState.PASSED


def test_a_worker_that_comes_back_takes_up_the_check_of_its_predecessor_at_once(
    house: House,
) -> None:
    house.register()
    check = ask(house)
    worker = house.worker()
    _claim(house, _device(house).id)
    worker.leave()
    serve(house)
    assert look(house, check).state is CheckState.PASSED


def test_a_check_that_two_workers_were_lost_with_has_failed(house: House) -> None:
    house.register()
    check = ask(house)
    for holder in ("first/CPU", "second/CPU"):
        _claim(house, holder)
        late(house, check, "lease_until")
        look(house, check)
    ended = look(house, check)
    assert ended.state is CheckState.FAILED
    assert "the last was second/CPU" in (ended.reason or "")


def test_a_late_worker_cannot_end_a_check_that_is_anothers(house: House) -> None:
    house.register()
    check = ask(house)
    token = _claim(house, "slow/CPU")
    late(house, check, "lease_until")
    look(house, check)
    for write in (
        lambda tx: stored.passed(tx, token, {}),
        lambda tx: stored.failed(tx, token, "late"),
        lambda tx: stored.renew(tx, token, 60.0),
    ):
        with pytest.raises(LostLease), house.database.unit_of_work() as tx:
            write(tx)
    assert look(house, check).state is CheckState.WAITING


def test_a_worker_that_stops_gives_its_check_back(house: House) -> None:
    house.register(load_s=30.0)
    check = ask(house)
    worker = house.worker()
    thread = threading.Thread(target=worker.serve)
    thread.start()
    until(lambda: look(house, check).state is CheckState.RUNNING)
    worker.leave()
    thread.join()
    assert look(house, check).state is CheckState.WAITING


def test_checks_that_ended_long_ago_are_forgotten_with_the_next(house: House) -> None:
    house.register()
    old, recent, waiting = ask(house), ask(house), ask(house)
    for check in (old, recent):
        late(house, check, "expires_at")
        look(house, check)
    with house.database.unit_of_work() as tx:
        tx.execute(
            text("UPDATE model_checks SET ended_at = now() - interval '31 days' WHERE id = :id"),
            {"id": old.id},
        )
    ask(house)
    with pytest.raises(NotFound):
        look(house, old)
    assert look(house, recent).state is CheckState.EXPIRED
    assert look(house, waiting).state is CheckState.WAITING


def test_a_check_of_another_project_is_not_there(house: House) -> None:
    house.register()
    check = ask(house)
    with pytest.raises(NotFound):
        model_checks.look(house.database, house.settings, check.id, Project("other"))


@pytest.mark.parametrize(
    "wrong",
    [
        "state = 'resting'",
        "state = 'running'",
        "state = 'passed', ended_at = now()",
        "state = 'failed', ended_at = now()",
        "state = 'expired', reason = 'late'",
        "report = '{}'",
        "reason = 'none'",
        "lease_token = gen_random_uuid()",
        "lease_until = now()",
        "ended_at = now()",
        "max_tokens = 0",
    ],
)
def test_the_database_refuses_a_check_that_cannot_be(house: House, wrong: str) -> None:
    house.register()
    ask(house)
    with pytest.raises(IntegrityError), house.database.unit_of_work() as tx:
        tx.execute(text(f"UPDATE model_checks SET {wrong}"))


def _claim(house: House, holder: str) -> LeaseToken:
    with house.database.unit_of_work() as tx:
        claimed = stored.claim(
            tx,
            pool="default",
            device="CPU",
            holder=DeviceId(holder),
            lease_s=60.0,
        )
    assert claimed is not None
    return claimed.token


def _device(house: House) -> Device:
    with house.database.unit_of_work() as tx:
        (device,) = devices.every(tx)
    return device
