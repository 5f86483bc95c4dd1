"""A completed request's timing line. Clock: monotonic nanoseconds of the machine that ran it.

Definitions, with t_enq given to the engine, t_adm first scheduled, t_first and t_last the first and
last output token, n_in, n_cached and n_out engine tokens:

queue_s = t_adm - t_enq; ttft_ms = t_first - t_adm; ttft_submit_ms = t_first - t_enq;
tpot_ms = (t_last - t_first) / (n_out - 1), null where n_out < 2; decode_tok_s = 1000 / tpot_ms;
prefill_tok_s = (n_in - n_cached) / ttft; e2e_s = t_last - t_adm; norm_latency = e2e / n_out.

What cannot be told, or would divide by zero, is null.
"""

import msgspec

from batchgen.domain.outcomes import FinishReason, Generation
from batchgen.domain.requests import GenerationRequest
from batchgen.formats.openai.records import encode_line

_S, _MS = 1_000_000_000, 1_000_000


class TimingRecord(msgspec.Struct, kw_only=True, frozen=True):
    """One line of a segment's timings. `finish_reason` is `length` where any choice ended so;
    `session` is the engine session it ran in, whose clock the times are of.
    """

    custom_id: str
    index: int
    line: int
    n_in: int
    n_cached: int | None
    n_out: int
    n_drafted: int | None
    n_accepted: int | None
    t_enq: int
    t_adm: int | None
    t_first: int | None
    t_last: int | None
    queue_s: float | None
    ttft_ms: float | None
    ttft_submit_ms: float | None
    tpot_ms: float | None
    decode_tok_s: float | None
    prefill_tok_s: float | None
    e2e_s: float | None
    norm_latency: float | None
    finish_reason: str
    session: str | None = None


def timing_line(
    request: GenerationRequest, generation: Generation, session: str | None = None
) -> bytes:
    """The timing line of a completed request, ending in a newline."""
    return encode_line(timing_record(request, generation, session))


def timing_record(
    request: GenerationRequest, generation: Generation, session: str | None = None
) -> TimingRecord:
    """A completed request's times and what follows from them."""
    t, n_out = generation.timings, generation.n_out
    ttft_ns = _between(t.t_adm, t.t_first)
    e2e_ns = _between(t.t_adm, t.t_last)
    decode_ns = _between(t.t_first, t.t_last)
    tpot_ns = None if decode_ns is None or n_out < 2 else decode_ns / (n_out - 1)
    computed = None if generation.n_cached is None else generation.n_in - generation.n_cached
    hit_limit = any(c.finish_reason is FinishReason.LENGTH for c in generation.choices)
    return TimingRecord(
        custom_id=request.custom_id,
        index=request.index,
        line=request.line,
        n_in=generation.n_in,
        n_cached=generation.n_cached,
        n_out=n_out,
        n_drafted=generation.n_drafted,
        n_accepted=generation.n_accepted,
        t_enq=t.t_enq,
        t_adm=t.t_adm,
        t_first=t.t_first,
        t_last=t.t_last,
        queue_s=_over(_between(t.t_enq, t.t_adm), _S),
        ttft_ms=_over(ttft_ns, _MS),
        ttft_submit_ms=_over(_between(t.t_enq, t.t_first), _MS),
        tpot_ms=_over(tpot_ns, _MS),
        decode_tok_s=_S / tpot_ns if tpot_ns else None,
        prefill_tok_s=_S * computed / ttft_ns if ttft_ns and computed is not None else None,
        e2e_s=_over(e2e_ns, _S),
        norm_latency=e2e_ns / _S / n_out if e2e_ns is not None and n_out else None,
        finish_reason=(FinishReason.LENGTH if hit_limit else FinishReason.STOP).value,
        session=session,
    )


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start


def _over(value: float | None, unit: int) -> float | None:
    return None if value is None else value / unit
