"""Every sampling parameter has its effect on the real engine, or is refused: none is just taken."""

import random
from collections import Counter
from typing import Any

import pytest

from batchgen.domain.outcomes import Choice, Failed, FinishReason, Generation
from batchgen.domain.requests import Grammar, GrammarKind, SamplingParams
from batchgen.engines.registry import refusal
from tests.conformance.conftest import Loaded, load, openvino_spec

pytest.importorskip("openvino_genai")

UNSURE = [7, 8, 9]  # a prompt unlike the model's own, after which it could go on in many ways
HOT: dict[str, Any] = {"temperature": 1.5, "max_tokens": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def plain():
    made = load(openvino_spec())
    yield made
    made.engine.close()


def ids(loaded: Loaded, **sampling: Any) -> tuple[int, ...]:
    return loaded.one(UNSURE, **(HOT | sampling)).choices[0].token_ids


def answers(loaded: Loaded, **sampling: Any) -> list[tuple[int, ...]]:
    """Greedy, after twenty prompts of which most make the model repeat itself."""
    chance = random.Random(3)
    prompts = [[chance.randrange(5, 2000) for _ in range(10)] for _ in range(20)]
    asked = {"max_tokens": 60, "ignore_eos": True} | sampling
    results = loaded.run(*(loaded.request(prompt, **asked) for prompt in prompts))
    assert all(isinstance(result, Generation) for result in results), results
    return [result.choices[0].token_ids for result in results]


def n_distinct(found: list[tuple[int, ...]]) -> int:
    return sum(len(set(answer)) for answer in found)


def finished(loaded: Loaded, **sampling: Any) -> Choice:
    """The answer to an order, which ends by itself where nothing forbids it."""
    return loaded.one(**({"max_tokens": 200} | sampling)).choices[0]


@pytest.mark.parametrize(
    "narrow", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.99}, {"temperature": 1e-4}]
)
def test_each_way_to_narrow_the_choice_to_one_token_gives_the_greedy_answer(plain, narrow):
    greedy = ids(plain, temperature=0.0)
    assert ids(plain, seed=5) != greedy
    assert ids(plain, seed=5, **narrow) == greedy


def test_a_top_k_of_two_leaves_two_tokens_at_each_place(plain):
    seen = Counter(ids(plain, seed=seed, top_k=2, max_tokens=1)[0] for seed in range(30))
    assert len(seen) == 2
    assert len({ids(plain, seed=seed, max_tokens=1)[0] for seed in range(30)}) > 2


def test_a_higher_temperature_is_more_diverse(plain):
    few, many = (
        len({ids(plain, seed=seed, temperature=t, max_tokens=1) for seed in range(30)})
        for t in (0.5, 50.0)
    )
    assert few < many


@pytest.mark.parametrize(
    ("name", "against", "towards"),
    [
        ("presence_penalty", 2.0, -2.0),
        ("frequency_penalty", 2.0, -2.0),
        ("repetition_penalty", 1.5, 0.7),
    ],
)
def test_a_penalty_makes_fewer_repetitions_and_its_opposite_more(plain, name, against, towards):
    usual = n_distinct(answers(plain))
    assert n_distinct(answers(plain, **{name: against})) > usual
    assert n_distinct(answers(plain, **{name: towards})) < usual


def test_a_seed_gives_the_same_choices_whatever_runs_beside_them(plain):
    alone = plain.one(UNSURE, **HOT, seed=7, n=3).choices
    assert len({choice.token_ids for choice in alone}) == 3
    others = [plain.request(UNSURE, **HOT, seed=seed) for seed in range(6)]
    *_, beside = plain.run(*others, plain.request(UNSURE, **HOT, seed=7, n=3))
    assert beside.choices == alone


def test_requests_without_a_seed_differ_from_each_other(plain):
    results = plain.run(*(plain.request(UNSURE, **HOT) for _ in range(6)))
    assert len({result.choices[0].token_ids for result in results}) > 1


def test_each_of_several_choices_has_its_own_logprobs(plain):
    found = plain.one(UNSURE, **HOT, n=4, seed=3, logprobs=0)
    for choice in found.choices:
        assert choice.logprobs is not None
        assert tuple(token.token_id for token in choice.logprobs) == choice.token_ids
        assert all(token.top == () for token in choice.logprobs)
    assert len({choice.logprobs for choice in found.choices}) == 4


def test_the_end_is_held_back_until_there_are_so_many_tokens(plain):
    usual = finished(plain)
    end = plain.encoder.tokenizer.eos_ids
    assert usual.finish_reason is FinishReason.STOP
    assert usual.token_ids[-1] in end
    n = len(usual.token_ids)
    longer = finished(plain, min_tokens=n + 5)
    assert len(longer.token_ids) >= n + 5
    assert longer.token_ids[: n - 1] == usual.token_ids[: n - 1]
    assert not set(longer.token_ids[: n + 4]) & set(end)
    assert finished(plain, min_tokens=n - 5).token_ids == usual.token_ids


def test_stop_tokens_are_held_back_as_the_end_is(plain):
    stop = finished(plain).token_ids[6]
    assert len(finished(plain, stop_token_ids=(stop,)).token_ids) == 7
    held = finished(plain, stop_token_ids=(stop,), min_tokens=20)
    assert len(held.token_ids) >= 20
    assert stop not in held.token_ids[:19]


def test_an_ignored_end_is_a_token_as_any_other(plain):
    usual = finished(plain)
    ignoring = finished(plain, ignore_eos=True)
    assert ignoring.token_ids[: len(usual.token_ids)] == usual.token_ids
    assert (len(ignoring.token_ids), ignoring.finish_reason) == (200, FinishReason.LENGTH)


@pytest.mark.parametrize(("start", "end"), [(3, 9), (10, 25), (0, 2)])
def test_a_stop_string_ends_the_text_before_it_however_it_is_cut_into_tokens(plain, start, end):
    whole = plain.encoder.decode(finished(plain).token_ids)
    stop = whole[start:end]
    found = finished(plain, stop=("never", stop))
    assert found.finish_reason is FinishReason.STOP
    text = plain.encoder.decode(found.token_ids, SamplingParams(stop=("never", stop)))
    assert text == whole[: whole.index(stop)]


def test_the_logprob_is_of_what_the_model_says_before_penalties(plain):
    prompt = [973] * 10
    usual = plain.one(prompt, max_tokens=1, logprobs=0, ignore_eos=True).choices[0]
    other = plain.one(
        prompt, max_tokens=1, logprobs=0, ignore_eos=True, repetition_penalty=3.0
    ).choices[0]
    assert usual.token_ids != other.token_ids
    assert other.logprobs[0].logprob < usual.logprobs[0].logprob


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"logprobs": 2}, "top_logprobs"),
        ({"logprobs": 20}, "top_logprobs"),
        ({"logprobs": 1, "temperature": 0.5}, "top_logprobs"),
        ({"logprobs": 1, "presence_penalty": 0.5}, "top_logprobs"),
        ({"logprobs": 1, "frequency_penalty": 0.5}, "top_logprobs"),
        ({"logprobs": 1, "repetition_penalty": 1.1}, "top_logprobs"),
        ({"logprobs": 1, "min_tokens": 2}, "top_logprobs"),
        ({"logprobs": 1, "grammar": Grammar(GrammarKind.REGEX, "a+")}, "top_logprobs"),
        ({"min_tokens": 2, "stop": ("x",)}, "min_tokens"),
        ({"n": 2}, "n"),
    ],
)
def test_what_would_have_no_effect_or_be_untrue_is_refused(plain, sampling, param):
    asked = {"temperature": 0.0, "max_tokens": 8} | sampling
    refused = refusal(plain.spec, SamplingParams(**asked))
    assert refused is not None
    assert (refused.status_code, refused.code, refused.param) == (
        400,
        "unsupported_parameter",
        param,
    )
    (result,) = plain.run(plain.request(UNSURE, **asked))
    assert isinstance(result, Failed)
    assert result == refused
