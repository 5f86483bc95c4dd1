"""A job's metrics, from the timing lines of its segments. The names and definitions are in
docs/metrics.md.

A value that cannot be measured is null and says why.
"""

import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from batchgen.domain.errors import NotFound
from batchgen.domain.jobs import EngineSession, Section, Segment
from batchgen.services.blame import Blame
from batchgen.storage.objects import ObjectStore

_NS = 1e-9
# The running batch counts as full from this share of its largest size on.
_PLATEAU = 0.9
_QUANTILES = (0.50, 0.90, 0.95, 0.99)
# Below these sizes the order statistics give no two-sided 95 % interval.
_LEAST_FOR_INTERVAL = {0.95: 72, 0.99: 367}
_NO_TIMED = "no request completed with timings"
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


_decode = msgspec.json.Decoder(_Timing).decode


@dataclass(slots=True)
class _Sums:
    """What one pass over the timings collects: eight bytes a number, whatever the job's size."""

    samples: dict[str, "array[float]"] = field(
        default_factory=lambda: {name: array("d") for name in _PER_REQUEST}
    )
    admitted: "array[int]" = field(default_factory=lambda: array("q"))
    first: "array[int]" = field(default_factory=lambda: array("q"))
    last: "array[int]" = field(default_factory=lambda: array("q"))
    out: "array[int]" = field(default_factory=lambda: array("q"))
    n: int = 0
    n_in: int = 0
    n_out: int = 0
    n_cached: int | None = None
    n_drafted: int | None = None
    n_accepted: int | None = None
    start: int | None = None
    end: int | None = None

    def take(self, timing: _Timing) -> None:
        self.n += 1
        self.n_in += timing.n_in
        self.n_out += timing.n_out
        self.n_cached = _plus(self.n_cached, timing.n_cached)
        self.n_drafted = _plus(self.n_drafted, timing.n_drafted)
        self.n_accepted = _plus(self.n_accepted, timing.n_accepted)
        for name, values in self.samples.items():
            value = getattr(timing, name)
            if value is not None:
                values.append(value)
        self.start = timing.t_enq if self.start is None else min(self.start, timing.t_enq)
        if timing.t_last is not None:
            self.end = timing.t_last if self.end is None else max(self.end, timing.t_last)
            if timing.t_adm is not None and timing.t_first is not None:
                self.admitted.append(timing.t_adm)
                self.first.append(timing.t_first)
                self.last.append(timing.t_last)
                self.out.append(timing.n_out)


def job_metrics(
    store: ObjectStore, segments: Iterable[Segment], sessions: Sequence[EngineSession]
) -> dict[str, Any]:
    """The job's metrics: `values` and `distributions`, each with unit and, where null, reason.

    Timings of several hosts have clocks of their own: sums over time are then null.
    """
    sums, blame = _Sums(), Blame(store)
    completed = failed = 0
    for segment in segments:
        completed += len(segment.draft.output_indexes)
        failed += len(segment.draft.error_indexes)
        blame.take(segment)
        for timing in _timings(store, segment):
            sums.take(timing)
    hosts = {session.device_id.partition("/")[0] for session in sessions}
    return {
        "simulated": any(bool(session.applied.get("simulated")) for session in sessions),
        "n_completed": completed,
        "n_failed": failed,
        "n_timed": sums.n,
        "commonest_error": blame.commonest(),
        "values": _values(sums, failed, one_clock=len(hosts) <= 1, sessions=sessions),
        "distributions": {
            name: _distribution(sums.samples[name], unit) for name, unit in _PER_REQUEST.items()
        },
    }


def _values(
    sums: _Sums, failed: int, *, one_clock: bool, sessions: Sequence[EngineSession]
) -> dict[str, Any]:
    attempts = sums.n + failed
    makespan = _makespan(sums) if one_clock else None
    clocks = _NO_TIMED if one_clock else "the job ran on several hosts, whose clocks differ"

    def rate(amount: int, unit: str) -> dict[str, Any]:
        return _value(None if not makespan else amount / makespan, unit, clocks)

    newest = sessions[-1].applied if sessions else {}
    no_session = "no engine was loaded for this job"
    return {
        "makespan_s": _value(makespan, "s", clocks),
        "output_tok_s": rate(sums.n_out, "tok/s"),
        "total_tok_s": rate(sums.n_in + sums.n_out, "tok/s"),
        "req_s": rate(sums.n, "/s"),
        "steady_output_tok_s": _value(_steady(sums) if one_clock else None, "tok/s", clocks),
        "error_rate": _value(failed / attempts if attempts else None, "1", "the job has no lines"),
        "prefix_hit_rate": _value(
            _ratio(sums.n_cached, sums.n_in), "1", "the engine does not tell cached tokens"
        ),
        "draft_acceptance": _value(
            _ratio(sums.n_accepted, sums.n_drafted), "1", _why_no_acceptance(newest)
        ),
        "load_s": _value(newest.get("load_s"), "s", no_session),
        "compile_s": _value(newest.get("compile_s"), "s", "the engine does not tell compile time"),
        "cache_state": _value(newest.get("cache_state"), "", "the engine has no compile cache"),
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


def _distribution(samples: "array[float]", unit: str) -> dict[str, Any]:
    if not samples:
        empty = dict.fromkeys(("mean", "min", "max", *map(_name, _QUANTILES)))
        return {"unit": unit, "n": 0, **empty, "reason": _NO_TIMED}
    ordered = sorted(samples)
    out: dict[str, Any] = {
        "unit": unit,
        "n": len(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "reason": None,
    }
    for q in _QUANTILES:
        out[_name(q)] = quantile(ordered, q)
    for q, least in _LEAST_FOR_INTERVAL.items():
        out[f"{_name(q)}_ci95"] = quantile_interval(ordered, q) if len(ordered) >= least else None
    return out


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, linear between the neighbours (Hyndman & Fan 1996, type
    7).
    """
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def quantile_interval(ordered: Sequence[float], q: float) -> tuple[float, float]:
    """A 95 % interval of the q-quantile by order statistics (Conover 1999, normal
    approximation).
    """
    n = len(ordered)
    spread = 1.959964 * math.sqrt(n * q * (1 - q))
    low = max(math.floor(n * q - spread), 0)
    high = min(math.ceil(n * q + spread), n - 1)
    return ordered[low], ordered[high]


def _name(q: float) -> str:
    return f"p{q * 100:.0f}"


def _makespan(sums: _Sums) -> float | None:
    if sums.start is None or sums.end is None or sums.end <= sums.start:
        return None
    return (sums.end - sums.start) * _NS


def _steady(sums: _Sums) -> float | None:
    """Output tokens a second while the running batch was nearly full.

    A request's tokens are taken as evenly spread between its first and its last.
    """
    if not sums.last:
        return None
    until = _time_in_plateau(sums.admitted, sums.last)
    whole = until(max(sums.last))
    if whole <= 0:
        return None
    tokens = 0.0
    for first, last, n_out in zip(sums.first, sums.last, sums.out, strict=True):
        if last > first:
            tokens += n_out * (until(last) - until(first)) / (last - first)
    return tokens / (whole * _NS)


def _time_in_plateau(starts: "array[int]", ends: "array[int]") -> Callable[[int], float]:
    """For any time t (ns): how long, up to t, the number of running requests was at its plateau."""
    changes = sorted([(t, 1) for t in starts] + [(t, -1) for t in ends])
    running, peak = 0, 0
    for _, step in changes:
        running += step
        peak = max(peak, running)
    times: list[int] = []
    spent: list[float] = []
    steady: list[bool] = []
    running, total, before = 0, 0.0, changes[0][0]
    for t, step in changes:
        if running >= _PLATEAU * peak:
            total += t - before
        running += step
        times.append(t)
        spent.append(total)
        steady.append(running >= _PLATEAU * peak)
        before = t

    def until(t: int) -> float:
        at = bisect_left(times, t + 1) - 1
        if at < 0:
            return 0.0
        return spent[at] + (t - times[at] if steady[at] else 0)

    return until


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _plus(total: int | None, value: int | None) -> int | None:
    return total if value is None else (total or 0) + value


def _timings(store: ObjectStore, segment: Segment) -> Iterator[_Timing]:
    start, end = segment.span(Section.TIMINGS)
    if end > start:
        try:
            body = store.get_range(segment.draft.object_key, start, end)
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
