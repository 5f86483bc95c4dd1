"""A line for /v1/responses is read as the chat that it asks for, and answered as a Response."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseReasoningItem

from batchgen.domain.outcomes import (
    Choice,
    Failed,
    FinishReason,
    Generation,
    Timings,
    TokenLogprob,
    ToolCall,
)
from batchgen.domain.requests import (
    ChatPrompt,
    Endpoint,
    GenerationRequest,
    GrammarKind,
    SamplingParams,
)
from batchgen.formats.openai import output_line, parse_line

URL = Endpoint.RESPONSES
CHAT = Endpoint.CHAT_COMPLETIONS
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Today's weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def read(body: dict[str, Any], endpoint: Endpoint = URL) -> GenerationRequest | Failed:
    line = {"custom_id": "c", "method": "POST", "url": endpoint, "body": {"model": "m"} | body}
    return parse_line(json.dumps(line).encode(), index=0, line=1, endpoint=endpoint)


def request(body: dict[str, Any], endpoint: Endpoint = URL) -> GenerationRequest:
    found = read(body, endpoint)
    assert isinstance(found, GenerationRequest), found
    return found


def failure(body: dict[str, Any]) -> Failed:
    found = read(body)
    assert isinstance(found, Failed), found
    assert found.status_code == 400
    return found


def messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    prompt = request(body).prompt
    assert isinstance(prompt, ChatPrompt)
    return [dict(message) for message in prompt.messages]


def answered(body: dict[str, Any], choice: Choice) -> Response:
    made = Generation((choice,), 7, None, len(choice.token_ids), Timings(0))
    line = output_line(
        request(body),
        made,
        model="m",
        created=1_700_000_000,
        token_bytes=lambda id_: b"t%d" % id_,
        fingerprint="fp",
    )
    whole = json.loads(line)
    assert (whole["custom_id"], whole["error"]) == ("c", None)
    assert whole["response"]["status_code"] == 200
    return Response.model_validate(whole["response"]["body"])


SAID = Choice((1, 2), FinishReason.STOP, "Hello")


def test_a_text_is_one_turn_of_the_user_and_instructions_go_before() -> None:
    assert messages({"input": "hi"}) == [{"role": "user", "content": "hi"}]
    assert messages({"input": "hi", "instructions": "Be short."}) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
    ]


def test_items_are_messages_with_or_without_their_type() -> None:
    items = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Yes?", "annotations": []}],
        },
        {"role": "user", "content": "Why"},
    ]
    assert messages({"input": items}) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Why"},
    ]


def test_calls_are_one_turn_of_the_assistant_and_their_outputs_the_tools() -> None:
    items = [
        {"role": "user", "content": "Oslo and Rome?"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Two."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "sun"}],
        },
    ]
    as_chat = [
        {"role": "user", "content": "Oslo and Rome?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Two.",
            "tool_calls": [
                {"id": id_, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                for id_ in "ab"
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "sun"},
    ]
    found = request({"input": items, "tools": [WEATHER]})
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    same = request(
        {"messages": as_chat, "tools": [{"type": "function", "function": function}]}, CHAT
    )
    assert (found.prompt, found.answer) == (same.prompt, same.answer)


def test_reasoning_without_a_word_says_nothing() -> None:
    items = [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "hi"}]
    assert messages({"input": items}) == [{"role": "user", "content": "hi"}]


def test_every_parameter_arrives() -> None:
    found = request(
        {
            "input": "hi",
            "max_output_tokens": 5,
            "temperature": 0,
            "top_p": 0.5,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
            "seed": 3,
            "stop": "x",
            "top_k": 4,
            "min_p": 0.25,
            "presence_penalty": 1,
            "frequency_penalty": -1,
            "repetition_penalty": 1.5,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [9],
            "chat_template_kwargs": {"enable_thinking": False},
            "metadata": {"a": "b"},
            "store": True,
            "user": "u",
        }
    )
    assert found.sampling == SamplingParams(
        max_tokens=5,
        temperature=0,
        top_p=0.5,
        logprobs=1,
        seed=3,
        stop=("x",),
        top_k=4,
        min_p=0.25,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=(9,),
    )
    assert isinstance(found.prompt, ChatPrompt)
    assert found.prompt.template_kwargs == {"enable_thinking": False}


def test_a_text_format_is_the_chats_response_format() -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    found = request({"input": "hi", "text": {"format": form}})
    schema = {"name": "n", "schema": SCHEMA, "strict": True}
    same = request(
        {
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {"type": "json_schema", "json_schema": schema},
        },
        CHAT,
    )
    assert found.sampling.grammar is not None
    assert found.sampling.grammar.kind is GrammarKind.JSON_SCHEMA
    assert (found.sampling.grammar.source, found.answer) == (
        same.sampling.grammar and same.sampling.grammar.source,
        same.answer,
    )
    assert request({"input": "hi", "text": {"format": {"type": "text"}}}).sampling.grammar is None


@pytest.mark.parametrize(
    "body",
    [
        {"background": False},
        {"truncation": "disabled"},
        {"previous_response_id": None},
        {"reasoning": {"effort": None, "summary": None}},
        {"reasoning": None},
        {"text": {}},
        {"tools": []},
        {"tool_choice": "auto"},
        {"include": []},
        {"stream": False},
        {"store": False, "service_tier": "flex", "prompt_cache_key": "k"},
        {"parallel_tool_calls": True},
    ],
)
def test_what_asks_for_nothing_is_taken(body: dict[str, Any]) -> None:
    assert request({"input": "hi"} | body).sampling == SamplingParams()


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
        ({"max_tool_calls": 1}, "unsupported_parameter", "max_tool_calls"),
        ({"reasoning": {"effort": "high"}}, "unsupported_parameter", "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "unsupported_parameter", "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, "unsupported_parameter", "text.verbosity"),
        ({"include": ["reasoning.encrypted_content"]}, "unsupported_value", "include[0]"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type"),
        ({"max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        ({"max_tokens": 5}, "unknown_parameter", "max_tokens"),
        ({"messages": []}, "unknown_parameter", "messages"),
        ({"temperature": 3}, "decimal_above_max_value", "temperature"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": []}, "empty_array", "input"),
        ({"input": ""}, "empty_prompt", "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        (
            {"instructions": "x", "input": [{"role": "user", "content": 5}]},
            "invalid_type",
            "input[0].content",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "unsupported_value",
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_value", "input[0].type"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "xx", "summary": []}]},
            "unsupported_parameter",
            "input[0].encrypted_content",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}]},
            "invalid_value",
            "input",
        ),
        (
            {
                "input": [
                    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}]},
                    {"role": "user", "content": "b"},
                ]
            },
            "invalid_value",
            "input[1]",
        ),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
            "missing_required_parameter",
            "input[0].call_id",
        ),
        (
            {"input": [{"type": "reasoning", "content": ["a"]}, {"role": "assistant"}]},
            "invalid_value",
            "input[0]",
        ),
        (
            {"input": [{"type": "reasoning", "content": True}, {"role": "assistant"}]},
            "invalid_value",
            "input[0]",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"$ref": "#/x"}}}},
            "invalid_schema",
            "text.format",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_the_endpoints_own_words(
    body: dict[str, Any], code: str, param: str
) -> None:
    found = failure({"input": "hi"} | body)
    assert (found.code, found.param) == (code, param)
    for word in ("messages[", "max_completion_tokens", "response_format", "json_schema."):
        assert word not in found.message


def test_what_a_refusal_quotes_of_the_request_is_no_place_in_it() -> None:
    tool = WEATHER | {"parameters": {"$ref": "messages[99]"}}
    found = failure({"input": "hi", "tools": [tool]})
    assert found.code == "invalid_schema"
    assert "points outside the schema" in found.message


def test_an_input_is_missed() -> None:
    assert (failure({}).code, failure({}).param) == ("missing_required_parameter", "input")


def test_an_answer_is_a_response_that_the_client_reads() -> None:
    body = {"input": "hi", "instructions": "Be short.", "metadata": {"a": "b"}, "temperature": 0}
    found = answered(body, SAID)
    assert (found.id[:5], found.object, found.created_at) == ("resp_", "response", 1_700_000_000)
    assert (found.status, found.incomplete_details, found.error) == ("completed", None, None)
    assert found.output_text == "Hello"
    assert [item.type for item in found.output] == ["message"]
    assert (found.instructions, found.metadata, found.temperature) == ("Be short.", {"a": "b"}, 0)
    assert found.usage is not None
    assert found.usage.input_tokens == 7
    assert found.usage.output_tokens == 2
    assert found.usage.total_tokens == 9
    assert found.usage.output_tokens_details.reasoning_tokens == 0


def test_an_answer_that_was_cut_is_incomplete_and_says_why() -> None:
    cut = Choice((1,), FinishReason.LENGTH, "Hel")
    found = answered({"input": "hi", "max_output_tokens": 1}, cut)
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.output[0].model_dump()["status"] == "incomplete"
    assert found.max_output_tokens == 1


def test_what_was_thought_said_and_called_are_items_of_their_own() -> None:
    choice = Choice(
        (1, 2, 3),
        FinishReason.TOOL_CALLS,
        "I look.",
        tool_calls=(ToolCall("call_1", "weather", '{"city": "Oslo"}'),),
        reasoning="Where?",
        n_reasoning=1,
    )
    found = answered({"input": "hi", "tools": [WEATHER], "tool_choice": "auto"}, choice)
    thought, said, call = found.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content is not None
    assert thought.content[0].text == "Where?"
    assert said.type == "message"
    assert found.output_text == "I look."
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.call_id, call.name, call.arguments) == ("call_1", "weather", '{"city": "Oslo"}')
    assert len({item.id for item in found.output}) == 3
    assert found.usage is not None
    assert found.usage.output_tokens_details.reasoning_tokens == 1
    assert found.tools[0].type == "function"


def test_a_call_without_words_has_no_message_and_an_empty_answer_has_one() -> None:
    call = Choice((1,), FinishReason.TOOL_CALLS, "", tool_calls=(ToolCall("c", "weather", "{}"),))
    found = answered({"input": "hi", "tools": [WEATHER]}, call)
    assert [item.type for item in found.output] == ["function_call"]
    nothing = answered({"input": "hi"}, Choice((), FinishReason.STOP, ""))
    assert [item.type for item in nothing.output] == ["message"]


def test_logprobs_come_with_the_text() -> None:
    choice = Choice((1,), FinishReason.STOP, "t1", logprobs=(TokenLogprob(1, -0.5, ((1, -0.5),)),))
    body = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    (message,) = answered(body, choice).output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    (token,) = part.logprobs
    assert (token.token, token.logprob, bytes(token.bytes)) == ("t1", -0.5, b"t1")
    assert [(top.token, top.logprob) for top in token.top_logprobs] == [("t1", -0.5)]
