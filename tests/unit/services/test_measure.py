"""What metrics are made of a job's timing lines."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from batchgen.domain.ids import DeviceId, SessionId
from batchgen.domain.jobs import EngineSession, FinalSegment
from batchgen.domain.outcomes import Failed
from batchgen.formats.openai import error_line
from batchgen.services import measure, records
from batchgen.services.records import Record, Usage
from batchgen.storage.objects import ObjectStore

MS = 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore.from_url((tmp_path / "objects").as_uri())


def timing(
    n_out: int, *, start_ms: int = 0, first_ms: int = 10, last_ms: int = 30
) -> dict[str, Any]:
    """A request admitted at `start_ms`, whose tokens come from `first_ms` to `last_ms` after it."""
    out: dict[str, Any] = {"n_in": 100, "n_cached": 40, "n_out": n_out, "t_enq": start_ms * MS}
    if n_out:
        out |= {
            "t_adm": start_ms * MS,
            "t_first": (start_ms + first_ms) * MS,
            "t_last": (start_ms + last_ms) * MS,
            "ttft_ms": float(first_ms),
            "tpot_ms": (last_ms - first_ms) / (n_out - 1) if n_out > 1 else None,
        }
    return out


def segment_of(
    store: ObjectStore, timings: list[dict[str, Any]], *, failed: int = 0
) -> FinalSegment:
    made = [Record(i, b"{}\n", json.dumps(t).encode() + b"\n") for i, t in enumerate(timings)]
    made += [
        Record(len(timings) + i, error_line(f"r{i}", Failed(400, f"code_{min(i, 1)}", "no")))
        for i in range(failed)
    ]
    draft = records.write(store, "jobs/j/0", made, Usage())
    return FinalSegment(
        object_key=draft.object_key,
        output_bytes=draft.output_bytes,
        timings_bytes=draft.timings_bytes,
        error_bytes=draft.error_bytes,
        sha256=draft.sha256,
        n_completed=len(draft.output_indexes),
        n_failed=len(draft.error_indexes),
        usage=draft.usage,
        session_ids=draft.session_ids,
    )


def metrics_of(store: ObjectStore, *timings: dict[str, Any], failed: int = 0) -> dict[str, Any]:
    return measure.job_metrics(store, [segment_of(store, list(timings), failed=failed)], [])


def test_tpot_is_null_below_two_tokens_and_the_sample_count_says_so(store: ObjectStore) -> None:
    found = metrics_of(store, timing(1), timing(2), timing(0))
    assert found["n_timed"] == 3
    assert found["distributions"]["tpot_ms"]["n"] == 1
    assert found["distributions"]["ttft_ms"]["n"] == 2


def test_tpot_of_zero_is_a_value(store: ObjectStore) -> None:
    found = metrics_of(store, timing(5, first_ms=10, last_ms=10))
    assert found["distributions"]["tpot_ms"]["mean"] == 0


def test_without_a_single_success_values_are_null_with_a_reason(store: ObjectStore) -> None:
    found = metrics_of(store, failed=4)
    assert found["n_failed"] == 4
    assert found["values"]["error_rate"]["value"] == 1.0
    assert found["commonest_error"] == {"code": "code_1", "message": "no", "n": 3}
    for name in ("makespan_s", "output_tok_s", "req_s", "steady_output_tok_s"):
        assert found["values"][name]["value"] is None
        assert found["values"][name]["reason"]
    assert found["distributions"]["ttft_ms"]["p95"] is None


def test_failures_do_not_drag_the_latency_of_successes(store: ObjectStore) -> None:
    alone = metrics_of(store, timing(3), timing(3))
    among = metrics_of(store, timing(3), timing(3), failed=2)
    assert among["distributions"] == alone["distributions"]
    assert among["values"]["error_rate"]["value"] == 0.5


def test_throughput_counts_from_the_first_submission_to_the_last_token(store: ObjectStore) -> None:
    values = metrics_of(store, timing(10), timing(10, start_ms=70))["values"]
    assert values["makespan_s"]["value"] == pytest.approx(0.1)
    assert values["output_tok_s"]["value"] == pytest.approx(200)
    assert values["total_tok_s"]["value"] == pytest.approx(2_200)
    assert values["req_s"]["value"] == pytest.approx(20)
    assert values["prefix_hit_rate"]["value"] == pytest.approx(0.4)


def test_steady_throughput_leaves_ramp_and_tail_out(store: ObjectStore) -> None:
    # Ten requests from 0 to 100 ms, and one that goes on alone to 1000 ms.
    crowd = [timing(11, first_ms=0, last_ms=100) for _ in range(10)]
    tail = timing(101, first_ms=0, last_ms=1_000)
    values = metrics_of(store, *crowd, tail)["values"]
    # While all run: 10 x 11 + 101 / 10 tokens in 0.1 s.
    assert values["steady_output_tok_s"]["value"] == pytest.approx(1_201, rel=0.01)
    assert values["output_tok_s"]["value"] == pytest.approx(211)


def test_every_null_has_a_reason_and_every_value_none(store: ObjectStore) -> None:
    for found in (metrics_of(store), metrics_of(store, timing(4))):
        for entry in found["values"].values():
            assert (entry["value"] is None) == bool(entry["reason"])


@pytest.mark.parametrize("n", [1, 2, 71, 72, 366, 367])
def test_intervals_come_with_enough_samples_only(store: ObjectStore, n: int) -> None:
    found = metrics_of(store, *[timing(3, first_ms=i + 1, last_ms=i + 5) for i in range(n)])
    ttft = found["distributions"]["ttft_ms"]
    assert (ttft["p95_ci95"] is not None) == (n >= 72)
    assert (ttft["p99_ci95"] is not None) == (n >= 367)
    if n >= 72:
        low, high = ttft["p95_ci95"]
        assert low <= ttft["p95"] <= high


def session(
    name: str, *, boot: str | None, monotonic_ms: int | None, started_ms: int = 0
) -> EngineSession:
    """One that began `started_ms` after some moment, when its clock said `monotonic_ms`."""
    return EngineSession(
        id=SessionId(name),
        device_id=DeviceId("host/CPU"),
        fingerprint="f",
        spec={},
        applied={},
        started_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=started_ms),
        ended_at=None,
        end_reason=None,
        boot_id=boot,
        monotonic_ns=None if monotonic_ms is None else monotonic_ms * MS,
    )


def over_a_reboot(store: ObjectStore, *sessions: EngineSession) -> dict[str, Any]:
    """Two requests of 100 ms: at 900,000 ms of the session `a`, and at 20 ms of `b`."""
    timings = [
        timing(10, start_ms=900_000, last_ms=100) | {"session": "a"},
        timing(10, start_ms=20, last_ms=100) | {"session": "b"},
    ]
    return measure.job_metrics(store, [segment_of(store, timings)], sessions)


def test_times_of_two_boots_meet_on_the_clock_of_the_database(store: ObjectStore) -> None:
    before = session("a", boot="one", monotonic_ms=900_000)
    after = session("b", boot="two", monotonic_ms=20, started_ms=5_000)
    found = over_a_reboot(store, before, after)
    assert found["clock"] == "database"
    assert found["values"]["makespan_s"]["value"] == pytest.approx(5.1)
    assert found["values"]["req_s"]["value"] == pytest.approx(2 / 5.1)
    assert found["values"]["steady_output_tok_s"]["value"] == pytest.approx(100, rel=0.01)


def test_times_of_one_boot_are_taken_as_they_are(store: ObjectStore) -> None:
    sessions = [session(name, boot="one", monotonic_ms=7) for name in ("a", "b")]
    found = over_a_reboot(store, *sessions)
    assert found["clock"] == "monotonic"
    assert found["values"]["makespan_s"]["value"] == pytest.approx(900.08)


def test_times_of_a_clock_that_nobody_knows_make_no_span(store: ObjectStore) -> None:
    before = session("a", boot=None, monotonic_ms=None)
    after = session("b", boot="two", monotonic_ms=20)
    found = over_a_reboot(store, before, after)
    assert found["values"]["makespan_s"]["value"] is None
    assert "clocks" in found["values"]["makespan_s"]["reason"]
    assert found["distributions"]["ttft_ms"]["n"] == 2
