"""A job's metrics, from the timing lines of its segments. The names and definitions are in
docs/metrics.md.

A value that cannot be measured is null and says why.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from batchgen.domain.errors import NotFound
from batchgen.domain.jobs import Counts, EngineSession, FinalSegment, Section
from batchgen.services.blame import Blame
from batchgen.services.clocks import Clocks
from batchgen.services.distribution import Distribution
from batchgen.services.plateau import Plateau
from batchgen.storage.objects import ObjectStore

_NS = 1e-9
_NO_TIMED = "no request completed with timings"
_NO_CLOCK = "the job ran on several machines or boots, and how their clocks stood is not known"
_NOT_COUNTED = "the engine does not count it for single jobs"
_NO_PROBE = "no probe reads it on this device"

_PER_REQUEST = {
    "queue_s": "s",
    "ttft_ms": "ms",
    "ttft_submit_ms": "ms",
    "tpot_ms": "ms",
    "decode_tok_s": "tok/s",
    "prefill_tok_s": "tok/s",
    "e2e_s": "s",
    "norm_latency": "s/tok",
}


class _Timing(msgspec.Struct, frozen=True):
    n_in: int
    n_out: int
    t_enq: int
    n_cached: int | None = None
    t_adm: int | None = None
    t_first: int | None = None
    t_last: int | None = None
    queue_s: float | None = None
    ttft_ms: float | None = None
    ttft_submit_ms: float | None = None
    tpot_ms: float | None = None
    decode_tok_s: float | None = None
    prefill_tok_s: float | None = None
    e2e_s: float | None = None
    norm_latency: float | None = None
    n_drafted: int | None = None
    n_accepted: int | None = None
    session: str | None = None


_decode = msgspec.json.Decoder(_Timing).decode


@dataclass(slots=True)
class _Sums:
    """What one pass over the timings collects, in memory that does not grow with the job."""

    spread: dict[str, Distribution] = field(
        default_factory=lambda: {name: Distribution() for name in _PER_REQUEST}
    )
    plateau: Plateau = field(default_factory=Plateau)
    n: int = 0
    n_in: int = 0
    n_out: int = 0
    n_cached: int | None = None
    n_drafted: int | None = None
    n_accepted: int | None = None
    start: int | None = None
    end: int | None = None
    clocks_known: bool = True

    def take(self, timing: _Timing, offset: int | None) -> None:
        """`offset` puts the timing on the job's clock; None: nobody knows how."""
        self.n += 1
        self.n_in += timing.n_in
        self.n_out += timing.n_out
        self.n_cached = _plus(self.n_cached, timing.n_cached)
        self.n_drafted = _plus(self.n_drafted, timing.n_drafted)
        self.n_accepted = _plus(self.n_accepted, timing.n_accepted)
        for name, distribution in self.spread.items():
            value = getattr(timing, name)
            if value is not None:
                distribution.add(value)
        if offset is None:
            self.clocks_known = False
        else:
            self._place(timing, offset)

    def _place(self, timing: _Timing, offset: int) -> None:
        begun = timing.t_enq + offset
        self.start = begun if self.start is None else min(self.start, begun)
        if timing.t_last is not None:
            ended = timing.t_last + offset
            self.end = ended if self.end is None else max(self.end, ended)
            if timing.t_adm is not None and timing.t_first is not None:
                first, admitted = timing.t_first + offset, timing.t_adm + offset
                self.plateau.add(admitted, first, ended, timing.n_out)


def job_metrics(
    store: ObjectStore, segments: Iterable[FinalSegment], sessions: Sequence[EngineSession]
) -> dict[str, Any]:
    """The job's metrics: `values` and `distributions`, each with unit and, where null, reason.

    `clock` says on which clock sums over time were made (see clocks.py).
    """
    sums, blame, clocks = _Sums(), Blame(store), Clocks(sessions)
    completed = failed = 0
    for segment in segments:
        completed += segment.n_completed
        failed += segment.n_failed
        blame.take(segment)
        for timing in _timings(store, segment):
            sums.take(timing, clocks.offset(timing.session, segment.session_ids))
    return {
        "simulated": any(bool(session.applied.get("simulated")) for session in sessions),
        "n_completed": completed,
        "n_failed": failed,
        "n_timed": sums.n,
        "clock": clocks.name,
        "commonest_error": blame.commonest(),
        "values": _values(sums, failed, sessions),
        "distributions": {
            name: sums.spread[name].summary(unit, none=_NO_TIMED)
            for name, unit in _PER_REQUEST.items()
        },
    }


def unmeasured(counts: Counts, reason: str) -> dict[str, Any]:
    """Metrics of a job that cannot be measured: every value null, and why."""
    return {
        "simulated": None,
        "n_completed": counts.completed,
        "n_failed": counts.failed,
        "n_timed": 0,
        "clock": None,
        "commonest_error": None,
        "values": {
            name: _value(None, value["unit"], reason)
            for name, value in _values(_Sums(), 0, []).items()
        },
        "distributions": {
            name: Distribution().summary(unit, none=reason) for name, unit in _PER_REQUEST.items()
        },
    }


def _values(sums: _Sums, failed: int, sessions: Sequence[EngineSession]) -> dict[str, Any]:
    attempts = sums.n + failed
    makespan = _makespan(sums) if sums.clocks_known else None
    steady = sums.plateau.rate() if sums.clocks_known else None
    clocks = _NO_TIMED if sums.clocks_known else _NO_CLOCK

    def rate(amount: int, unit: str) -> dict[str, Any]:
        return _value(None if not makespan else amount / makespan, unit, clocks)

    newest = sessions[-1].applied if sessions else {}
    no_session = "no engine was loaded for this job"
    return {
        "makespan_s": _value(makespan, "s", clocks),
        "output_tok_s": rate(sums.n_out, "tok/s"),
        "total_tok_s": rate(sums.n_in + sums.n_out, "tok/s"),
        "req_s": rate(sums.n, "/s"),
        "steady_output_tok_s": _value(None if steady is None else steady / _NS, "tok/s", clocks),
        "error_rate": _value(failed / attempts if attempts else None, "1", "the job has no lines"),
        "prefix_hit_rate": _value(
            _ratio(sums.n_cached, sums.n_in), "1", "the engine does not tell cached tokens"
        ),
        "drafted_tokens": _value(sums.n_drafted, "tok", _why_no_acceptance(newest)),
        "accepted_tokens": _value(sums.n_accepted, "tok", "no speculative decoding"),
        "draft_acceptance": _value(
            _ratio(sums.n_accepted, sums.n_drafted), "1", _why_no_acceptance(newest)
        ),
        "load_s": _value(newest.get("load_s"), "s", no_session),
        "compile_s": _value(newest.get("compile_s"), "s", "the engine does not tell compile time"),
        "cache_state": _value(newest.get("cache_state"), "", "the engine has no compile cache"),
        "cache_bytes": _value(newest.get("cache_bytes"), "B", "the load used no compile cache"),
        "itl_ms": _value(None, "ms", "the engine reports whole requests, not single tokens"),
        "preemptions": _value(None, "1", _NOT_COUNTED),
        "recompute_tokens": _value(None, "1", _NOT_COUNTED),
        "kv_util_peak": _value(None, "1", _NOT_COUNTED),
        "vram_peak_bytes": _value(None, "B", _NO_PROBE),
        "rss_peak_bytes": _value(None, "B", _NO_PROBE),
        "energy_j": _value(None, "J", _NO_PROBE),
        "power_avg_w": _value(None, "W", _NO_PROBE),
        "j_per_out_tok": _value(None, "J/tok", _NO_PROBE),
        "throttle_frac": _value(None, "1", _NO_PROBE),
        "goodput_req_s": _value(None, "/s", "the job declares no service level"),
    }


def _why_no_acceptance(applied: Mapping[str, Any]) -> str:
    config = applied.get("config") or {}
    speculates = config.get("draft") or config.get("prompt_lookup")
    return "the engine does not tell drafted tokens" if speculates else "no speculative decoding"


def _value(value: Any, unit: str, reason: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "reason": reason if value is None else None}


def _makespan(sums: _Sums) -> float | None:
    if sums.start is None or sums.end is None or sums.end <= sums.start:
        return None
    return (sums.end - sums.start) * _NS


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _plus(total: int | None, value: int | None) -> int | None:
    return total if value is None else (total or 0) + value


def _timings(store: ObjectStore, segment: FinalSegment) -> Iterator[_Timing]:
    start, end = segment.span(Section.TIMINGS)
    if end > start:
        try:
            body = store.get_range(segment.object_key, start, end)
        except NotFound:
            return  # `n_timed` tells; a job must not stay for ever because of its metrics
        for line in body.split(b"\n")[:-1]:
            yield _timing(line)


def _timing(line: bytes) -> _Timing:
    try:
        return _decode(line)
    except msgspec.DecodeError:
        # A lone surrogate in a custom_id is nothing that msgspec reads; Python's reader does.
        return msgspec.convert(json.loads(line), _Timing)
