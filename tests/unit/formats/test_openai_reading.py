"""A request line becomes a request or the failure OpenAI would give; nothing is dropped."""

import json
from typing import Any

import pytest

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import (
    ChatPrompt,
    Endpoint,
    GenerationRequest,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from batchgen.formats.openai import parse_line

CHAT, TEXT = Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS
CONTENT = "messages[1].content"
HI = [{"role": "user", "content": "hi"}]


def read(endpoint: Endpoint, body: dict[str, Any], **options: Any) -> GenerationRequest | Failed:
    whole = {"custom_id": "c", "method": "POST", "url": endpoint, "body": {"model": "m"} | body}
    return parse_line(json.dumps(whole).encode(), index=3, line=7, endpoint=endpoint, **options)


def request(endpoint: Endpoint, body: dict[str, Any]) -> GenerationRequest:
    found = read(endpoint, body)
    assert isinstance(found, GenerationRequest), found
    return found


def failure(endpoint: Endpoint, body: dict[str, Any], **options: Any) -> tuple[str, str | None]:
    found = read(endpoint, body, **options)
    assert isinstance(found, Failed), found
    assert found.status_code == 400
    assert found.message
    return found.code, found.param


def chat(**body: Any) -> GenerationRequest:
    return request(CHAT, {"messages": HI} | body)


def chat_failure(**body: Any) -> tuple[str, str | None]:
    return failure(CHAT, {"messages": HI} | body)


def test_a_chat_line_becomes_a_request() -> None:
    assert chat() == GenerationRequest("c", 3, 7, CHAT, ChatPrompt(tuple(HI)), SamplingParams())


def test_a_completion_line_has_the_apis_own_default_length() -> None:
    found = request(TEXT, {"prompt": "Once"})
    assert found == GenerationRequest(
        "c", 3, 7, TEXT, TextPrompt("Once"), SamplingParams(), default_max_tokens=16
    )


# sampling


def test_every_sampling_parameter_arrives() -> None:
    found = chat(
        max_completion_tokens=64,
        temperature=0,
        top_p=0.5,
        presence_penalty=-2,
        frequency_penalty=2,
        n=3,
        seed=0,
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=5,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[1, 2],
        chat_template_kwargs={"enable_thinking": False, "style": "terse"},
    )
    assert found.sampling == SamplingParams(
        max_tokens=64,
        min_tokens=2,
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.1,
        n=3,
        seed=0,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        logprobs=5,
    )
    assert isinstance(found.prompt, ChatPrompt)
    assert found.prompt.template_kwargs == {"enable_thinking": False, "style": "terse"}


def test_null_is_the_default_of_every_optional_parameter() -> None:
    names = (
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "presence_penalty", "n"),
        *("frequency_penalty", "seed", "stop", "logprobs", "top_logprobs", "top_k", "min_p"),
        *("repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "stream", "tools"),
        *("chat_template_kwargs", "response_format", "logit_bias", "user", "reasoning_effort"),
    )
    assert chat(**dict.fromkeys(names)) == chat()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ],
)
def test_chat_logprobs_are_asked_for_by_logprobs(
    body: dict[str, Any], expected: int | None
) -> None:
    assert chat(**body).sampling.logprobs == expected


def test_an_echoed_prompt_may_be_all_that_is_asked_for() -> None:
    found = request(TEXT, {"prompt": "Once", "echo": True, "logprobs": 1, "max_tokens": 0})
    assert found.sampling == SamplingParams(echo=True, logprobs=1, max_tokens=0)
    assert found.sampling.scores_prompt
    assert not request(TEXT, {"prompt": "Once", "echo": True}).sampling.scores_prompt


@pytest.mark.parametrize("body", [{"max_tokens": 0}, {"max_tokens": 0, "echo": False}])
def test_no_tokens_at_all_are_refused_without_an_echo(body: dict[str, Any]) -> None:
    assert failure(TEXT, {"prompt": "a"} | body) == ("integer_below_min_value", "max_tokens")


def test_a_default_length_is_a_bound_of_min_tokens_too() -> None:
    assert request(TEXT, {"prompt": "a", "min_tokens": 16}).sampling.min_tokens == 16
    assert failure(TEXT, {"prompt": "a", "min_tokens": 17})[1] == "min_tokens"


def test_completion_logprobs_are_a_number() -> None:
    assert request(TEXT, {"prompt": "x", "logprobs": 0}).sampling.logprobs == 0
    assert failure(TEXT, {"prompt": "x", "logprobs": 6}) == ("integer_above_max_value", "logprobs")
    assert failure(TEXT, {"prompt": "x", "logprobs": True}) == ("invalid_type", "logprobs")


@pytest.mark.parametrize(
    ("seed", "code"),
    [
        (2**64, "integer_above_max_value"),
        (2**63, "integer_above_max_value"),
        (10**400, "integer_above_max_value"),
        (-1, "integer_below_min_value"),
        (1.5, "invalid_type"),
        ("abc", "invalid_type"),
        (True, "invalid_type"),
    ],
)
def test_a_seed_that_is_no_seed_costs_its_line_only(seed: Any, code: str) -> None:
    assert chat_failure(seed=seed) == (code, "seed")


@pytest.mark.parametrize("seed", [None, 0, 1, 2**63 - 1])
def test_a_good_seed_arrives_and_null_is_unseeded(seed: int | None) -> None:
    assert chat(seed=seed).sampling.seed == seed


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("temperature", -0.1, "decimal_below_min_value"),
        ("temperature", 2.1, "decimal_above_max_value"),
        ("temperature", "hot", "invalid_type"),
        ("temperature", 10**400, "invalid_type"),
        ("top_p", 0, "decimal_below_min_value"),
        ("top_p", 1.1, "decimal_above_max_value"),
        ("min_p", 1.1, "decimal_above_max_value"),
        ("presence_penalty", -2.1, "decimal_below_min_value"),
        ("frequency_penalty", 2.1, "decimal_above_max_value"),
        ("repetition_penalty", 0, "decimal_below_min_value"),
        ("n", 0, "integer_below_min_value"),
        ("n", 129, "integer_above_max_value"),
        ("top_k", -2, "integer_below_min_value"),
        ("max_tokens", 0, "integer_below_min_value"),
        ("max_tokens", 1_000_001, "integer_above_max_value"),
        ("max_completion_tokens", -5, "integer_below_min_value"),
        ("max_tokens", 1.5, "invalid_type"),
        ("min_tokens", -1, "integer_below_min_value"),
        ("top_logprobs", 2_000_000_000, "integer_above_max_value"),
        ("stop", "", "empty_string"),
        ("stop", ["a", ""], "empty_string"),
        ("stop", ["a"] * 17, "array_above_max_length"),
        ("stop", "x" * 513, "string_above_max_length"),
        ("stop_token_ids", [-1], "integer_below_min_value"),
        ("stop_token_ids", [0] * 129, "array_above_max_length"),
        ("ignore_eos", 1, "invalid_type"),
        ("chat_template_kwargs", {"a": {}}, "invalid_type"),
    ],
)
def test_a_parameter_out_of_bounds_is_refused_by_name(name: str, value: Any, code: str) -> None:
    assert chat_failure(**{name: value}) == (code, name)


def test_a_wrong_element_of_a_list_is_named_by_its_place() -> None:
    assert chat_failure(stop=["a", 1]) == ("invalid_type", "stop[1]")
    assert chat_failure(stop_token_ids=[1, 2, "x"]) == ("invalid_type", "stop_token_ids[2]")


def test_the_most_output_tokens_are_the_servers_to_set() -> None:
    body = {"messages": HI, "max_tokens": 101}
    assert failure(CHAT, body, max_output_tokens=100) == ("integer_above_max_value", "max_tokens")


def test_the_two_names_of_the_length_may_not_disagree() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).sampling.max_tokens == 5
    assert chat_failure(max_tokens=5, max_completion_tokens=6) == ("invalid_value", "max_tokens")


def test_at_least_so_many_tokens_cannot_be_more_than_at_most() -> None:
    assert chat_failure(max_tokens=5, min_tokens=6) == ("integer_above_max_value", "min_tokens")


def test_minus_one_switches_top_k_off() -> None:
    assert chat(top_k=-1) == chat(top_k=0) == chat()


def test_top_logprobs_without_logprobs_is_refused() -> None:
    assert chat_failure(top_logprobs=2) == ("invalid_value", "top_logprobs")


@pytest.mark.parametrize("number", ["1e400", "-1e400"])
def test_a_number_beyond_floating_point_is_out_of_bounds(number: str) -> None:
    raw = b'{"custom_id":"c","body":{"prompt":"a","temperature":%s}}' % number.encode()
    found = parse_line(raw, index=0, line=1, endpoint=TEXT)
    assert isinstance(found, Failed)
    assert found.param == "temperature"


# what is not supported


@pytest.mark.parametrize(
    "body",
    [
        {"functions": [{}]},
        {"logit_bias": {"1": 5}},
        {"stream": True},
        {"stream_options": {"include_usage": True}},
        {"echo": True},
        {"best_of": 2},
        {"use_beam_search": True},
        {"guided_json": {}},
        {"guided_regex": "(a+)+$"},
        {"modalities": ["text", "audio"]},
        {"reasoning_effort": "high"},
        {"chat_template": "{{ messages }}"},
        {"continue_final_message": True},
        {"skip_special_tokens": False},
        {"skip_special_tokens": 1},
    ],
)
def test_what_is_not_supported_is_refused_by_name(body: dict[str, Any]) -> None:
    [name] = body
    assert chat_failure(**body) == ("unsupported_parameter", name)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tool_choice": "none"},
        {"logit_bias": {}},
        {"stream": False},
        {"parallel_tool_calls": True},
        {"best_of": 1},
        {"modalities": ["text"]},
        {"skip_special_tokens": True},
        {"add_generation_prompt": True},
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "flex"},
    ],
)
def test_what_changes_nothing_is_accepted(body: dict[str, Any]) -> None:
    assert chat(**body) == chat()


def test_an_unknown_parameter_names_the_nearest() -> None:
    found = read(CHAT, {"messages": HI, "temprature": 1})
    assert isinstance(found, Failed)
    assert (found.code, found.param) == ("unknown_parameter", "temprature")
    assert "'temperature'" in found.message


def test_an_unknown_parameter_of_any_length_makes_a_short_message() -> None:
    found = read(CHAT, {"messages": HI, "\0x" * 100_000: 1})
    assert isinstance(found, Failed)
    assert len(found.message) < 1_000


def test_the_other_endpoints_parameters_are_unknown() -> None:
    assert failure(TEXT, {"prompt": "x", "messages": HI}) == ("unknown_parameter", "messages")
    assert chat_failure(prompt="x") == ("unknown_parameter", "prompt")


# messages


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], "empty_array", "messages"),
        ("hi", "invalid_type", "messages"),
        (None, "invalid_type", "messages"),
        ([{"role": "user", "content": ""}], "empty_prompt", "messages"),
        ([{"role": "user"}], "missing_required_parameter", "messages[0].content"),
        ([*HI, {"role": "user"}], "missing_required_parameter", "messages[1].content"),
        ([*HI, {"role": "user", "content": None}], "missing_required_parameter", CONTENT),
        ([*HI, {"content": "x"}], "missing_required_parameter", "messages[1].role"),
        ([*HI, 3], "invalid_type", "messages[1]"),
        ([*HI, {"role": 3, "content": "x"}], "invalid_type", "messages[1].role"),
        ([*HI, {"role": "bot", "content": "x"}], "invalid_value", "messages[1].role"),
        ([*HI, {"role": "function", "content": "x"}], "unsupported_value", "messages[1].role"),
        ([*HI, {"role": "user", "content": 3}], "invalid_type", "messages[1].content"),
        ([{"role": "user", "content": "x", "x": 1}], "unknown_parameter", "messages[0].x"),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
            "missing_required_parameter",
            "messages[0].tool_calls[0].id",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "unsupported_value",
            "messages[0].content[0].type",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "missing_required_parameter",
            "messages[0].content[0].text",
        ),
    ],
)
def test_a_bad_message_is_named_by_its_place(messages: Any, code: str, param: str) -> None:
    assert failure(CHAT, {"messages": messages}) == (code, param)


def test_a_chat_without_messages_misses_them() -> None:
    assert failure(CHAT, {}) == ("missing_required_parameter", "messages")


def test_text_parts_are_joined_by_newlines_and_developers_are_systems() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": "x", "refusal": None, "reasoning_content": "r"},
        ]
    )
    assert isinstance(found.prompt, ChatPrompt)
    assert found.prompt.messages == (
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": "x", "reasoning_content": "r"},
    )


def test_a_request_cannot_replace_what_the_server_gives_the_template() -> None:
    code, param = chat_failure(chat_template_kwargs={"messages": "x"})
    assert (code, param) == ("invalid_value", "chat_template_kwargs.messages")


# prompts


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("x", TextPrompt("x")),
        (["x"], TextPrompt("x")),
        ([1, 2], TokenPrompt((1, 2))),
        ([[1, 2]], TokenPrompt((1, 2))),
    ],
)
def test_a_prompt_is_a_text_or_token_ids(prompt: Any, expected: object) -> None:
    assert request(TEXT, {"prompt": prompt}).prompt == expected


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("", "empty_prompt"),
        ([], "empty_prompt"),
        ([""], "empty_prompt"),
        ([[]], "empty_prompt"),
        (["a", "b"], "unsupported_value"),
        ([[1], [2]], "unsupported_value"),
        ([1, "a"], "invalid_type"),
        ([True], "invalid_type"),
        ([-1], "invalid_type"),
        ([2**31], "invalid_type"),
        ([1.0], "invalid_type"),
        ({"a": 1}, "invalid_type"),
        (None, "invalid_type"),
        (3, "invalid_type"),
    ],
)
def test_a_prompt_that_is_none_costs_its_line_only(prompt: Any, code: str) -> None:
    assert failure(TEXT, {"prompt": prompt}) == (code, "prompt")


def test_a_completion_without_a_prompt_misses_it() -> None:
    assert failure(TEXT, {}) == ("missing_required_parameter", "prompt")


# odd text


def test_nul_and_pairs_arrive_as_they_are() -> None:
    odd = "a\0b\u2028\x85\U0001f600"
    found = chat(messages=[{"role": "user", "content": odd}])
    assert isinstance(found.prompt, ChatPrompt)
    assert found.prompt.messages[0]["content"] == odd


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a\ud83db"}]}),
        (TEXT, {"prompt": "\ude00"}),
        (CHAT, {"messages": HI, "stop": "\ud83d"}),
        (CHAT, {"messages": HI, "chat_template_kwargs": {"a": "\ud83d"}}),
    ],
)
def test_half_a_surrogate_pair_is_no_text_and_costs_its_line_only(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    code, param = failure(endpoint, body)
    assert code == "invalid_unicode"
    assert param in body


def test_half_a_surrogate_pair_survives_where_no_model_reads_it() -> None:
    raw = b'{"custom_id":"\\ud83d","body":{"prompt":"a","user":"\\ud83d"}}'
    found = parse_line(raw, index=0, line=1, endpoint=TEXT)
    assert isinstance(found, GenerationRequest)
    assert found.custom_id == "\ud83d"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"[" * 100_000, b"{}", b'{"custom_id":"a"}', b"\xff", b'"a"']
)
def test_a_line_that_cannot_be_read_at_all_is_a_failure_and_no_crash(raw: bytes) -> None:
    assert isinstance(parse_line(raw, index=0, line=1, endpoint=CHAT), Failed)


def test_one_bad_line_among_a_hundred_costs_one() -> None:
    bodies: list[dict[str, Any]] = [{"messages": HI} for _ in range(100)]
    bodies[49] = {"messages": [{"role": "user"}]}
    found = [read(CHAT, body) for body in bodies]
    assert [i for i, outcome in enumerate(found, 1) if isinstance(outcome, Failed)] == [50]
