"""The simulated engine does what its spec says."""

import pytest

from batchgen.domain.errors import LoadFailed
from batchgen.domain.outcomes import Failed, FinishReason, Generation
from batchgen.domain.requests import SamplingParams
from batchgen.engines.protocol import EngineRequest
from batchgen.engines.simulated.engine import SimulatedEngine
from batchgen.engines.spec import OpenVinoSpec, Rule, SimulatedSpec


def request(id_: int, text: str, **sampling) -> EngineRequest:
    return EngineRequest(
        id=id_, prompt_ids=list(text.encode()), sampling=SamplingParams(**sampling)
    )


def loaded(**spec) -> SimulatedEngine:
    engine = SimulatedEngine()
    engine.load(SimulatedSpec(**spec))
    return engine


def run(engine: SimulatedEngine, *requests: EngineRequest) -> dict[int, Generation | Failed]:
    ended = engine.submit(requests)
    while engine.has_work():
        engine.schedule()
        ended += engine.step()
    return {finished.id: finished.result for finished in ended}


def text_of(result: Generation | Failed) -> str:
    assert isinstance(result, Generation)
    return bytes(i for i in result.choices[0].token_ids if i < 256).decode()


def test_it_repeats_the_prompt_a_token_a_step():
    engine = loaded()
    result = run(engine, request(1, "abc", max_tokens=7))[1]
    assert text_of(result) == "abcabca"
    assert result.choices[0].finish_reason is FinishReason.LENGTH
    assert (result.n_in, result.n_cached, result.n_out) == (3, 0, 7)
    assert engine.stats().steps == 7


def test_a_request_without_a_limit_gets_the_default():
    assert run(loaded(default_max_tokens=5), request(1, "abc"))[1].n_out == 5


def test_output_ends_at_the_model_length():
    results = run(
        loaded(max_model_len=10),
        request(1, "x" * 9, max_tokens=50),
        request(2, "x" * 10, max_tokens=1),
        request(3, "x" * 11, max_tokens=1),
    )
    assert results[1].n_out == 1
    assert results[1].choices[0].finish_reason is FinishReason.LENGTH
    assert results[2].code == results[3].code == "context_length_exceeded"


def test_an_answer_ends_with_the_end_token_unless_that_is_ignored():
    rules = [Rule(contains="hi", action="answer", text="yes")]
    results = run(
        loaded(rules=rules),
        request(1, "hi", max_tokens=20),
        request(2, "hi", max_tokens=6, ignore_eos=True),
        request(3, "hi", max_tokens=20, min_tokens=6),
    )
    assert results[1].choices[0].token_ids == (*b"yes", 256)
    assert results[1].choices[0].finish_reason is FinishReason.STOP
    assert results[2].n_out == 6
    assert results[2].choices[0].finish_reason is FinishReason.LENGTH
    assert results[3].n_out == 8


def test_stop_strings_and_stop_ids_stop():
    results = run(
        loaded(),
        request(1, "abcdef", max_tokens=20, stop=("de",)),
        request(2, "abcdef", max_tokens=20, stop_token_ids=(ord("c"),)),
        request(3, "abcdef", max_tokens=20, stop=("zz",)),
    )
    assert text_of(results[1]) == "abcde"
    assert text_of(results[2]) == "abc"
    assert results[3].choices[0].finish_reason is FinishReason.LENGTH


def test_choices_count_as_sequences():
    engine = loaded(max_num_seqs=4)
    results = run(engine, request(1, "ab", max_tokens=3, n=3), request(2, "ab", max_tokens=3, n=3))
    assert len(results[1].choices) == 3
    assert results[1].n_out == 9
    assert engine.stats().max_running == 3
    assert run(engine, request(3, "ab", n=5))[3].param == "n"


def test_logprobs_are_those_of_certainty_and_alternatives_are_refused():
    results = run(
        loaded(), request(1, "ab", max_tokens=2, logprobs=0), request(2, "ab", logprobs=5)
    )
    assert [(t.token_id, t.logprob) for t in results[1].choices[0].logprobs] == [(97, 0), (98, 0)]
    assert results[2].code == "unsupported_parameter"


def test_a_request_over_the_kv_pool_is_an_error_line_and_the_others_run():
    engine = loaded(kv_blocks=4)
    results = run(
        engine,
        request(1, "a" * 60, max_tokens=10),
        *(request(i, "a" * 20, max_tokens=10) for i in range(2, 8)),
    )
    assert results[1].code == "kv_capacity"
    assert [results[i].n_out for i in range(2, 8)] == [10] * 6
    assert engine.stats().kv_utilisation == 0
    assert engine.stats().kv_utilisation_peak == 1


def test_only_the_request_that_a_rule_names_fails():
    rules = [Rule(contains="bad", action="fail", after_tokens=2, message="as told")]
    results = run(loaded(rules=rules), request(1, "bad one"), request(2, "good one"))
    assert results[1] == Failed(500, "scripted_failure", "as told")
    assert isinstance(results[2], Generation)


def test_a_rule_acts_as_often_as_it_says():
    rules = [Rule(contains="bad", action="fail", times=1)]
    results = run(loaded(rules=rules), request(1, "bad"), request(2, "bad"))
    assert isinstance(results[1], Failed)
    assert isinstance(results[2], Generation)


def test_a_slow_request_takes_its_factor_of_steps():
    engine = loaded(rules=[Rule(contains="slow", action="slow", factor=3.0)])
    run(engine, request(1, "slow", max_tokens=4))
    assert engine.stats().steps == 12


def test_a_scripted_raise_comes_out_of_step():
    engine = loaded(rules=[Rule(contains="bad", action="raise", message="broken")])
    with pytest.raises(RuntimeError, match="broken"):
        run(engine, request(1, "bad"))


def test_cancelled_requests_end_nowhere_and_leave_room():
    engine = loaded(max_num_seqs=2, kv_blocks=8)
    assert engine.submit([request(i, "abc", max_tokens=50) for i in range(4)]) == []
    assert engine.schedule() == [0, 1]
    engine.step()
    assert sorted(engine.cancel([1, 3, 99])) == [1, 3]
    assert engine.schedule() == [2]
    assert set(run(engine)) == {0, 2}
    assert engine.stats().kv_utilisation == 0


def test_timings_are_in_order():
    result = run(loaded(step_s=0.001), request(1, "abc", max_tokens=3))[1]
    timings = result.timings
    assert timings.t_enq <= timings.t_adm <= timings.t_first < timings.t_last
    assert timings.t_first - timings.t_adm >= 1_000_000
    assert timings.t_last - timings.t_adm >= 3_000_000


def test_steps_take_the_time_that_the_spec_gives_them():
    engine = loaded(step_s=0.001, step_s_per_seq=0.001, prefill_tok_s=1000.0)
    result = run(engine, request(1, "0123456789", max_tokens=5))[1]
    # The first step: 1 ms, 1 ms a sequence, 10 ms for ten prompt tokens; then four of 2 ms.
    assert result.timings.t_first - result.timings.t_adm >= 11_900_000
    assert result.timings.t_last - result.timings.t_adm >= 19_900_000


def test_specs_that_cannot_work_fail_the_load(tmp_path):
    for spec in (
        SimulatedSpec(max_num_seqs=0),
        SimulatedSpec(max_model_len=1),
        SimulatedSpec(kv_blocks=0),
        SimulatedSpec(path=str(tmp_path)),
        OpenVinoSpec(path="x"),
    ):
        with pytest.raises(LoadFailed):
            SimulatedEngine().load(spec)


def test_applied_says_that_it_is_simulated():
    applied = SimulatedEngine().load(SimulatedSpec(max_num_seqs=3))
    assert applied.simulated
    assert applied.max_live == 3
    assert applied.config["max_num_seqs"] == 3
