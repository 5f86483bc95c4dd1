"""Prompts that are scored: each token's logprob is that of the text before it, in any company."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from batchgen.domain.outcomes import Failed, FinishReason, Generation
from batchgen.domain.requests import SamplingParams
from batchgen.engines.protocol import EngineRequest
from batchgen.engines.registry import refusal
from batchgen.engines.spec import PromptLookup
from tests.conformance.conftest import Loaded, load, openvino_spec, tiny_pool_spec

pytest.importorskip("openvino_genai")


def near(wanted: Sequence[float]) -> Any:
    """Rounding depends on the batch; what belongs to another token or prompt is far off."""
    return pytest.approx(wanted, abs=0.6, rel=0.05)


@pytest.fixture(scope="module")
def plain():
    made = load(openvino_spec())
    yield made
    made.engine.close()


def some_prompts(n: int, seed: int = 1) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(5, 2000) for _ in range(chance.randrange(20, 120))] for _ in range(n)]


def scoring(loaded: Loaded, prompt: Sequence[int], max_tokens: int = 0, **more) -> EngineRequest:
    asked = {"logprobs": 0, "echo": True, "ignore_eos": True} | more
    return loaded.request(prompt, max_tokens=max_tokens, **asked)


def scores(result: Generation | Failed) -> tuple[float, ...]:
    assert isinstance(result, Generation), result
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == result.n_in
    assert result.prompt_logprobs[0] is None
    rest = result.prompt_logprobs[1:]
    assert all(logprob is not None and logprob < 0.01 for logprob in rest)
    return rest


def alone(loaded: Loaded, prompts: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
    return [scores(loaded.run(scoring(loaded, prompt))[0]) for prompt in prompts]


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.5, "seed": 3},
        {"temperature": 5.0, "seed": 3},
        {"temperature": 1.0, "top_k": 5, "seed": 3},
        {"repetition_penalty": 1.5, "frequency_penalty": 1.0},
    ],
)
def test_a_scored_prompt_has_the_logprobs_that_its_tokens_had_when_they_were_generated(
    plain, sampling
):
    prompt = [7, 8, 9]
    generated = plain.one(prompt, max_tokens=20, ignore_eos=True, logprobs=0, **sampling)
    (choice,) = generated.choices
    whole = scores(plain.run(scoring(plain, [*prompt, *choice.token_ids]))[0])
    assert whole[-20:] == near([token.logprob for token in choice.logprobs])


def test_nothing_is_generated_where_no_tokens_are_asked_for(plain):
    (result,) = plain.run(scoring(plain, plain.prompt()))
    assert result.n_out == 0
    assert result.choices[0].token_ids == ()
    assert result.choices[0].logprobs == ()
    assert result.choices[0].finish_reason is FinishReason.LENGTH
    assert (result.timings.t_first, result.timings.t_last) == (None, None)
    assert result.timings.t_adm is not None


def test_an_answer_after_a_scored_prompt_is_the_answer_without_scoring(plain):
    prompt = plain.prompt()
    expected = plain.one(prompt, max_tokens=9, logprobs=0, ignore_eos=True)
    (result,) = plain.run(scoring(plain, prompt, 9))
    assert result.choices == expected.choices
    assert result.n_out == expected.n_out == 9
    assert scores(result) == near(scores(plain.run(scoring(plain, prompt))[0]))


def test_each_of_several_choices_comes_without_the_prompt(plain):
    prompt = plain.prompt()
    (result,) = plain.run(scoring(plain, prompt, 6, n=3, temperature=1.0, seed=1))
    assert [len(choice.token_ids) for choice in result.choices] == [6, 6, 6]
    assert result.n_out == 18
    assert scores(result) == near(scores(plain.run(scoring(plain, prompt))[0]))


def test_stops_are_looked_for_in_the_answer_only(plain):
    prompt = plain.prompt()
    stop = plain.encoder.decode(prompt)[5:9]
    for stops in ({"stop": (stop,)}, {"stop_token_ids": (prompt[5],)}):
        (result,) = plain.run(scoring(plain, prompt, 6, **stops))
        assert result.n_out == 6


def test_temperature_and_penalties_leave_the_prompts_logprobs_as_they_are(plain):
    prompt = plain.prompt()
    expected = scores(plain.run(scoring(plain, prompt))[0])
    for sampling in (
        {"temperature": 0.3, "seed": 1},
        {"temperature": 1.0, "top_k": 2, "seed": 1},
        {"repetition_penalty": 1.5, "frequency_penalty": 1.0},
    ):
        (result,) = plain.run(scoring(plain, prompt, 3, **sampling))
        assert scores(result) == near(expected)


@pytest.mark.parametrize(
    "scheduler",
    [
        {},
        {"max_num_batched_tokens": 32},
        {"max_num_batched_tokens": 4096},
        {"dynamic_split_fuse": False},
    ],
    ids=["256 tokens a step", "prompts in parts", "all in a step", "prompts whole"],
)
def test_scores_are_the_same_in_company_as_alone(openvino, scheduler):
    loaded = openvino(scheduler)
    prompts = some_prompts(24)
    expected = alone(loaded, prompts)
    chance = random.Random(2)
    lengths = [chance.choice([0, 0, 5, 20]) for _ in prompts]
    results = loaded.run(*map(lambda p, n: scoring(loaded, p, n), prompts, lengths))
    for result, wanted, length in zip(results, expected, lengths, strict=True):
        assert scores(result) == near(wanted)
        assert result.n_out == length


def test_scoring_and_answering_leave_each_other_alone(plain):
    prompts = some_prompts(16, seed=3)
    answers = [plain.one(p, max_tokens=12, ignore_eos=True).choices for p in prompts]
    expected = alone(plain, prompts)
    requests = [plain.request(p, max_tokens=12, ignore_eos=True) for p in prompts]
    requests += [scoring(plain, p) for p in prompts]
    order = list(range(len(requests)))
    random.Random(4).shuffle(order)
    results = plain.run(*(requests[i] for i in order))
    n_equal = 0
    for i, result in zip(order, results, strict=True):
        if i < len(prompts):
            n_equal += result.choices == answers[i]
        else:
            assert scores(result) == near(expected[i - len(prompts)])
    assert n_equal >= 0.9 * len(prompts)  # greedy text may differ where two tokens are as likely


def test_many_prompts_are_scored_in_one_step(plain):
    before = plain.engine.stats().steps
    prompts = [[5 + i] * 20 for i in range(10)]
    plain.run(*(scoring(plain, prompt) for prompt in prompts))
    assert plain.engine.stats().steps - before < len(prompts)


def test_scores_are_right_where_the_kv_pool_is_short():
    loaded = load(tiny_pool_spec("openvino"))
    prompts = some_prompts(20, seed=5)
    expected = alone(loaded, prompts)
    results = loaded.run(*(scoring(loaded, prompt, 40) for prompt in prompts))
    loaded.engine.close()
    for result, wanted in zip(results, expected, strict=True):
        assert scores(result) == near(wanted)


@pytest.mark.parametrize(
    ("changes", "sampling", "param"),
    [
        ({"scheduler": {"enable_prefix_caching": True}}, {}, "echo"),
        ({"prompt_lookup": PromptLookup(num_assistant_tokens=3, max_ngram_size=2)}, {}, "echo"),
        ({}, {"logprobs": 2}, "top_logprobs"),
        ({}, {"n": 2, "temperature": 1.0}, "n"),
        ({}, {"min_tokens": 1}, "min_tokens"),
        ({}, {"echo": False}, "max_tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_it_is_sent(changes, sampling, param):
    spec = openvino_spec(**changes)
    asked = {"temperature": 0.0, "max_tokens": 0, "logprobs": 0, "echo": True} | sampling
    refused = refusal(spec, SamplingParams(**asked))
    assert refused is not None
    assert (refused.status_code, refused.param) == (400, param)


def test_the_engine_refuses_to_score_with_prefix_caching_and_runs_the_others(openvino):
    loaded = openvino({"enable_prefix_caching": True})
    refused, other = loaded.run(scoring(loaded, [5, 6, 7]), loaded.request())
    assert isinstance(refused, Failed)
    assert "enable_prefix_caching=false" in refused.message
    assert isinstance(other, Generation)
