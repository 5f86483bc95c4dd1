"""What every engine does, whatever computes its tokens."""

import random

import pytest

from batchgen.domain.outcomes import Failed, FinishReason, Generation
from batchgen.engines.protocol import Engine
from tests.conformance.conftest import KV_POOL_TOKENS, load, ordinary_spec, tiny_pool_spec


@pytest.fixture(scope="module")
def tiny(kind: str):
    made = load(tiny_pool_spec(kind))
    yield made
    made.engine.close()


def failed(result: Generation | Failed) -> Failed:
    assert isinstance(result, Failed)
    return result


def generated(result: Generation | Failed) -> Generation:
    assert isinstance(result, Generation), result
    return result


def test_an_answer_ends_at_its_limit_with_exactly_so_many_tokens(idle):
    generation = idle.one(max_tokens=5, ignore_eos=True)
    assert generation.n_out == len(generation.choices[0].token_ids) == 5
    assert generation.choices[0].finish_reason is FinishReason.LENGTH


def test_the_same_greedy_request_gives_the_same_answer(idle):
    first, second = idle.one(max_tokens=20), idle.one(max_tokens=20)
    assert first.choices == second.choices


def test_prompt_tokens_are_counted_as_given(idle):
    request = idle.request()
    (result,) = idle.run(request)
    assert generated(result).n_in == len(request.prompt_ids)


def test_ignoring_the_end_generates_to_the_limit(idle):
    generation = idle.one(max_tokens=150, ignore_eos=True)
    assert generation.n_out == 150
    assert generation.choices[0].finish_reason is FinishReason.LENGTH


def test_a_stop_string_ends_the_answer_and_its_tokens_are_counted(idle):
    whole = idle.one(max_tokens=24, ignore_eos=True)
    text = idle.text(whole)
    stop = text[8:12]
    generation = idle.one(max_tokens=24, ignore_eos=True, stop=(stop,))
    assert generation.choices[0].finish_reason is FinishReason.STOP
    ids = generation.choices[0].token_ids
    assert generation.n_out == len(ids) < 24
    assert ids == whole.choices[0].token_ids[: len(ids)]
    assert stop in idle.text(generation)


def test_a_stop_token_ends_the_answer_even_where_the_end_is_ignored(idle):
    ids = idle.one(max_tokens=24, ignore_eos=True).choices[0].token_ids
    stop = ids[6]
    for ignore_eos in (False, True):
        generation = idle.one(max_tokens=24, ignore_eos=ignore_eos, stop_token_ids=(stop,))
        assert generation.choices[0].token_ids == ids[: ids.index(stop) + 1]
        assert generation.choices[0].finish_reason is FinishReason.STOP


def test_choices_are_as_many_as_asked_for(idle):
    generation = idle.one(n=3, temperature=1.0, max_tokens=6, ignore_eos=True, seed=1)
    assert [len(choice.token_ids) for choice in generation.choices] == [6, 6, 6]
    assert generation.n_out == 18


def test_logprobs_belong_to_the_generated_tokens(idle):
    generation = idle.one(max_tokens=6, logprobs=0)
    choice = generation.choices[0]
    assert choice.logprobs is not None
    assert tuple(t.token_id for t in choice.logprobs) == choice.token_ids
    assert all(t.logprob <= 0 and t.top == () for t in choice.logprobs)
    assert idle.one(max_tokens=6).choices[0].logprobs is None


def test_more_alternatives_than_an_engine_has_are_refused(idle):
    result = failed(idle.run(idle.request(logprobs=5))[0])
    assert (result.status_code, result.code) == (400, "unsupported_parameter")
    assert result.param == "top_logprobs"


def test_a_prompt_up_to_the_models_length_is_run_and_a_longer_one_refused(idle):
    limit = idle.applied.max_model_len
    shorter, exact, longer, good = idle.run(
        idle.request([5] * (limit - 1), max_tokens=50, ignore_eos=True),
        idle.request([5] * limit),
        idle.request([5] * (limit + 1)),
        idle.request(),
    )
    assert generated(shorter).n_out == 1
    assert generated(shorter).choices[0].finish_reason is FinishReason.LENGTH
    assert failed(exact).code == failed(longer).code == "context_length_exceeded"
    assert generated(good).n_out > 0


def test_prompts_that_an_engine_would_die_of_are_refused_and_the_others_run(idle):
    vocab = idle.applied.vocab_size
    bad = [[], [5, vocab], [5, -1], [5, 2**62]]
    results = idle.run(
        *(idle.request(prompt) for prompt in bad), *(idle.request() for _ in range(10))
    )
    assert [failed(result).status_code for result in results[:4]] == [400] * 4
    assert all(generated(result).n_out for result in results[4:])


def test_requests_over_the_running_batch_wait_and_all_end(idle):
    rng = random.Random(1)
    asked = [rng.randint(1, 40) for _ in range(120)]
    requests = [
        idle.request([rng.randint(3, 900)] * rng.randint(2, 60), max_tokens=n, ignore_eos=True)
        for n in asked
    ]
    results = idle.run(*requests)
    assert [generated(result).n_out for result in results] == asked
    assert 2 <= idle.engine.stats().max_running <= idle.applied.max_live


def test_only_what_is_admitted_is_named_before_its_step(idle):
    requests = [idle.request(max_tokens=30, ignore_eos=True) for _ in range(20)]
    idle.engine.submit(requests)
    admitted = idle.engine.schedule()
    assert admitted == [request.id for request in requests[: idle.applied.max_live]]
    idle.engine.step()
    assert idle.engine.schedule() == []
    idle.engine.cancel([request.id for request in requests])
    finish(idle.engine)


def test_cancelled_requests_have_no_result_and_the_others_have_theirs(idle):
    requests = [idle.request(max_tokens=12, ignore_eos=True) for _ in range(20)]
    idle.engine.submit(requests)
    idle.engine.schedule()
    idle.engine.step()
    running, waiting = requests[0].id, requests[-1].id
    assert sorted(idle.engine.cancel([running, waiting, 10**6])) == [running, waiting]
    ended = finish(idle.engine)
    assert set(ended) == {request.id for request in requests[1:-1]}
    assert all(generated(result).n_out == 12 for result in ended.values())


def test_an_engine_whose_requests_were_all_cancelled_is_idle_and_usable(idle):
    requests = [idle.request(max_tokens=200, ignore_eos=True) for _ in range(5)]
    idle.engine.submit(requests)
    idle.engine.schedule()
    idle.engine.step()
    idle.engine.cancel([request.id for request in requests])
    assert finish(idle.engine) == {}
    assert idle.engine.stats().running == 0
    assert idle.one().n_out > 0


def test_requests_cancelled_before_their_first_step_leave_nothing(idle):
    request = idle.request()
    idle.engine.submit([request])
    idle.engine.schedule()
    assert idle.engine.cancel([request.id]) == [request.id]
    assert finish(idle.engine) == {}


def test_timings_are_in_order_and_tell_waiting_from_running(idle):
    requests = [idle.request(max_tokens=10, ignore_eos=True) for _ in range(40)]
    results = [generated(result) for result in idle.run(*requests)]
    for generation in results:
        t = generation.timings
        assert t.t_enq <= t.t_adm <= t.t_first <= t.t_last
    assert results[-1].timings.t_adm > results[0].timings.t_adm


def test_one_token_has_one_time(idle):
    timings = idle.one(max_tokens=1).timings
    assert timings.t_first == timings.t_last


def test_counters_tell_what_was_done(idle):
    before = idle.engine.stats()
    results = [generated(r) for r in idle.run(*(idle.request() for _ in range(5)))]
    after = idle.engine.stats()
    assert after.output_tokens - before.output_tokens == sum(r.n_out for r in results)
    assert after.prompt_tokens - before.prompt_tokens == sum(r.n_in for r in results)
    assert after.steps > before.steps
    assert (after.running, after.waiting) == (0, 0)


def test_memory_in_use_is_told(idle):
    assert idle.engine.stats().rss_bytes > 2**20


def test_a_prompt_over_the_kv_pool_is_an_error_line_and_short_ones_finish(tiny):
    results = tiny.run(
        tiny.request([5] * (KV_POOL_TOKENS * 3)),
        *(tiny.request([5 + i] * 20, ignore_eos=True) for i in range(10)),
    )
    assert failed(results[0]).code == "kv_capacity"
    assert [generated(result).n_out for result in results[1:]] == [8] * 10


def test_an_answer_that_outgrows_the_kv_pool_is_an_error_line_and_the_others_finish(tiny):
    results = tiny.run(
        *(tiny.request([5 + i] * 20, ignore_eos=True) for i in range(4)),
        tiny.request([5] * 20, max_tokens=KV_POOL_TOKENS * 2, ignore_eos=True),
        *(tiny.request([9 + i] * 20, ignore_eos=True) for i in range(4)),
    )
    assert failed(results.pop(4)).code == "kv_capacity"
    assert [generated(result).n_out for result in results] == [8] * 8


def test_choices_over_the_kv_pool_are_an_error_line(tiny):
    prompt = [5] * 40
    result = tiny.run(tiny.request(prompt, n=10, temperature=1.0, max_tokens=60, ignore_eos=True))
    assert failed(result[0]).code == "kv_capacity"


def test_more_than_the_kv_pool_holds_at_once_finishes_all_the_same(tiny):
    rng = random.Random(2)
    asked = [rng.randint(1, 100) for _ in range(60)]
    requests = [
        tiny.request([rng.randint(3, 900)] * rng.randint(2, 120), max_tokens=n, ignore_eos=True)
        for n in asked
    ]
    assert [generated(result).n_out for result in tiny.run(*requests)] == asked


def test_what_is_applied_names_the_engine_and_its_limits(loaded):
    applied = loaded.applied
    assert applied.engine_version
    assert applied.device == "CPU"
    assert applied.device_name
    assert applied.max_model_len == 4096
    assert applied.max_live == 16
    assert applied.load_s > 0
    assert applied.simulated == isinstance(loaded.spec, type(ordinary_spec("simulated")))


def finish(engine: Engine) -> dict[int, Generation | Failed]:
    ended = []
    while engine.has_work():
        engine.schedule()
        ended += engine.step()
    return {each.id: each.result for each in ended}


def test_a_prompt_is_scored_whole_or_the_request_refused(idle):
    request = idle.request(max_tokens=0, echo=True, logprobs=0)
    (result,) = idle.run(request)
    if isinstance(result, Failed):
        assert (result.code, result.param) == ("unsupported_parameter", "echo")
    else:
        assert result.prompt_logprobs is not None
        assert len(result.prompt_logprobs) == len(request.prompt_ids)
        assert result.n_out == 0
