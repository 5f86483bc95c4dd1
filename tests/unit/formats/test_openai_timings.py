"""Timing lines follow the measurement contract, and are null where it defines nothing."""

import json
from typing import Any

import pytest

from batchgen.domain.outcomes import Choice, FinishReason, Generation, Timings
from batchgen.domain.requests import Endpoint, GenerationRequest, SamplingParams, TextPrompt
from batchgen.formats.openai import timing_line

MS = 1_000_000
REQUEST = GenerationRequest("c", 3, 7, Endpoint.COMPLETIONS, TextPrompt("x"), SamplingParams())
WHOLE = Timings(t_enq=0, t_adm=500 * MS, t_first=600 * MS, t_last=1_600 * MS)


def timing(
    times: Timings = WHOLE,
    *,
    n_out: int = 11,
    n_cached: int | None = 40,
    finished: tuple[FinishReason, ...] = (FinishReason.STOP,),
    **more: Any,
) -> dict[str, Any]:
    choices = tuple(Choice((), reason, "") for reason in finished)
    made = Generation(choices, 100, n_cached, n_out, times, **more)
    found = json.loads(timing_line(REQUEST, made, "sess_1"))
    assert isinstance(found, dict)
    return found


def test_every_definition_of_the_contract() -> None:
    found = timing(n_drafted=20, n_accepted=5)
    assert found == {
        "custom_id": "c",
        "index": 3,
        "line": 7,
        "n_in": 100,
        "n_cached": 40,
        "n_out": 11,
        "n_drafted": 20,
        "n_accepted": 5,
        "t_enq": 0,
        "t_adm": 500 * MS,
        "t_first": 600 * MS,
        "t_last": 1_600 * MS,
        "queue_s": 0.5,
        "ttft_ms": 100.0,
        "ttft_submit_ms": 600.0,
        "tpot_ms": 100.0,
        "decode_tok_s": 10.0,
        "prefill_tok_s": 600.0,
        "e2e_s": 1.1,
        "norm_latency": 0.1,
        "finish_reason": "stop",
        "session": "sess_1",
    }


@pytest.mark.parametrize("n_out", [0, 1])
def test_time_per_token_needs_two_tokens(n_out: int) -> None:
    found = timing(n_out=n_out)
    assert found["tpot_ms"] is None
    assert found["decode_tok_s"] is None


def test_two_tokens_at_once_take_no_time_and_have_no_rate() -> None:
    found = timing(Timings(0, 1, 5, 5), n_out=2)
    assert found["tpot_ms"] == 0
    assert found["decode_tok_s"] is None


def test_nothing_generated_has_no_latency_a_token() -> None:
    assert timing(n_out=0)["norm_latency"] is None


def test_an_engine_that_tells_no_first_token_has_no_ttft() -> None:
    found = timing(Timings(0, 1, None, 5))
    for name in ("ttft_ms", "ttft_submit_ms", "tpot_ms", "decode_tok_s", "prefill_tok_s"):
        assert found[name] is None
    assert found["e2e_s"] == 4e-9


def test_an_engine_that_tells_no_admission_has_times_from_submission_only() -> None:
    found = timing(Timings(0, None, 2 * MS, 12 * MS), n_out=11)
    for name in ("queue_s", "ttft_ms", "e2e_s", "norm_latency", "prefill_tok_s"):
        assert found[name] is None
    assert (found["ttft_submit_ms"], found["tpot_ms"]) == (2.0, 1.0)


def test_a_first_token_at_once_has_no_prefill_rate() -> None:
    found = timing(Timings(0, 1, 1, 5))
    assert found["ttft_ms"] == 0
    assert found["prefill_tok_s"] is None


def test_an_engine_that_tells_no_cached_tokens_has_no_prefill_rate() -> None:
    assert timing(n_cached=None)["prefill_tok_s"] is None
    assert timing(n_cached=None)["n_cached"] is None


def test_one_choice_at_its_limit_makes_the_line_one_at_its_limit() -> None:
    assert timing(finished=(FinishReason.STOP, FinishReason.LENGTH))["finish_reason"] == "length"
