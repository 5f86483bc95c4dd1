"""Forms of answers and tools of a line: read, bounded, or refused by name."""

import json
from typing import Any

import pytest

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import (
    AnswerForm,
    ChatPrompt,
    Endpoint,
    GenerationRequest,
    Grammar,
    GrammarKind,
    ToolChoice,
)
from batchgen.formats.openai import parse_line

CHAT = Endpoint.CHAT_COMPLETIONS
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
SOURCE = json.dumps(SCHEMA, separators=(",", ":"))
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "time", "description": "now"}}
NO_ARGUMENTS = '{"type":"object","properties":{}}'


def read(body: dict[str, Any], endpoint: Endpoint = CHAT) -> GenerationRequest | Failed:
    prompt = {"messages": HI} if endpoint is CHAT else {"prompt": "hi"}
    line = {"custom_id": "c", "method": "POST", "url": endpoint, "body": prompt | body}
    return parse_line(json.dumps(line).encode(), index=0, line=1, endpoint=endpoint)


def request(body: dict[str, Any], endpoint: Endpoint = CHAT) -> GenerationRequest:
    found = read(body, endpoint)
    assert isinstance(found, GenerationRequest), found
    return found


def failure(body: dict[str, Any], endpoint: Endpoint = CHAT) -> tuple[str, str | None]:
    found = read(body, endpoint)
    assert isinstance(found, Failed), found
    assert found.status_code == 400
    return found.code, found.param


def json_schema(**changes: Any) -> dict[str, Any]:
    wanted = {"name": "order", "schema": SCHEMA} | changes
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | changes}


# response_format


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_json_schema_is_a_grammar_and_a_check(strict: bool | None) -> None:
    found = request(json_schema(strict=strict, description="an order"))
    assert found.sampling.grammar == Grammar(GrammarKind.JSON_SCHEMA, SOURCE)
    assert found.answer == AnswerForm(SOURCE, strict=bool(strict))


def test_a_schemas_properties_keep_their_order() -> None:
    grammar = request(json_schema()).sampling.grammar
    assert grammar is not None
    assert grammar.source.index('"b"') < grammar.source.index('"a"')


def test_a_json_object_is_any_object() -> None:
    found = request({"response_format": {"type": "json_object"}})
    assert found.answer.json_schema == '{"type":"object"}'
    assert found.sampling.grammar is not None


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"response_format": "json"}, "invalid_type", "response_format"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {"type": "regex"}}, "invalid_type", "response_format.regex"),
        (
            {"response_format": {"type": "json_object", "grammar": 'root ::= "a"'}},
            "invalid_value",
            "response_format.grammar",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "missing_required_parameter",
            "response_format.json_schema",
        ),
        (
            json_schema(schema=None),
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        (json_schema(name="an order"), "invalid_value", "response_format.json_schema.name"),
        (json_schema(schema={"$ref": "#"}), "invalid_schema", "response_format"),
        (json_schema(schema={"type": "nonsense"}), "invalid_schema", "response_format"),
        (json_schema(schema={"x": "y" * 200_000}), "invalid_schema", "response_format"),
        (json_schema(skema={}), "unknown_parameter", "response_format.json_schema.skema"),
    ],
)
def test_a_bad_response_format_names_its_place(body: dict[str, Any], code: str, param: str) -> None:
    assert failure(body) == (code, param)


# structured_outputs


@pytest.mark.parametrize(
    ("asked", "kind", "source"),
    [
        ({"json": SCHEMA}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"json": json.dumps(SCHEMA)}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"json_object": True, "regex": None}, GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
        ({"regex": "[0-9]+"}, GrammarKind.REGEX, "[0-9]+"),
        ({"grammar": 'root ::= "a"'}, GrammarKind.EBNF, 'root ::= "a"'),
        ({"choice": ["yes", 'n"o\n']}, GrammarKind.EBNF, 'root ::= "yes" | "n\\"o\\n"'),
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, Endpoint.COMPLETIONS])
def test_other_forms_are_grammars(
    asked: dict[str, Any], kind: GrammarKind, source: str, endpoint: Endpoint
) -> None:
    [name] = [name for name, value in asked.items() if value]
    found = request({"structured_outputs": asked}, endpoint)
    assert found.sampling.grammar == Grammar(kind, source, f"structured_outputs.{name}")


@pytest.mark.parametrize(
    ("asked", "code", "param"),
    [
        ("[0-9]", "invalid_type", "structured_outputs"),
        ({}, "invalid_value", "structured_outputs"),
        ({"regex": "a", "grammar": "b"}, "invalid_value", "structured_outputs"),
        ({"regexp": "a"}, "unknown_parameter", "structured_outputs.regexp"),
        ({"regex": ""}, "invalid_type", "structured_outputs.regex"),
        ({"regex": "a" * 10_000}, "string_above_max_length", "structured_outputs.regex"),
        ({"choice": []}, "invalid_type", "structured_outputs.choice"),
        ({"choice": [1]}, "invalid_type", "structured_outputs.choice"),
        ({"json": "{"}, "invalid_type", "structured_outputs.json"),
        ({"json": {"$ref": "#"}}, "invalid_schema", "structured_outputs.json"),
    ],
)
def test_a_bad_form_names_its_place(asked: Any, code: str, param: str) -> None:
    assert failure({"structured_outputs": asked}) == (code, param)


def test_half_a_surrogate_pair_in_a_schemas_text_is_refused() -> None:
    asked = {"structured_outputs": {"json": r'{"enum": ["\ud800"]}'}}
    assert failure(asked) == ("invalid_schema", None)


@pytest.mark.parametrize(
    ("kind", "name"), [(GrammarKind.REGEX, "regex"), (GrammarKind.EBNF, "grammar")]
)
def test_a_response_format_may_be_a_regex_or_a_grammar(kind: GrammarKind, name: str) -> None:
    asked = request({"response_format": {"type": name, name: "[0-9]+"}})
    assert asked.sampling.grammar == Grammar(kind, "[0-9]+", f"response_format.{name}")


def test_an_answer_has_one_form() -> None:
    both = {"structured_outputs": {"regex": "a"}} | json_schema()
    assert failure(both) == ("invalid_value", "structured_outputs")
    with_tools = {"tools": [WEATHER]} | json_schema()
    assert failure(with_tools) == ("unsupported_parameter", "response_format")
    assert request(with_tools | {"tool_choice": "none"}).answer.json_schema == SOURCE


# tools


def test_tools_are_shown_to_the_template_and_may_be_called() -> None:
    found = request({"tools": [WEATHER, TIME]})
    assert isinstance(found.prompt, ChatPrompt)
    assert [shown["function"]["name"] for shown in found.prompt.tools] == ["weather", "time"]
    assert found.prompt.tools[0] == WEATHER
    assert found.answer.tools == ToolChoice(("weather", "time"), (SOURCE, NO_ARGUMENTS))
    assert found.sampling.grammar is None


def test_strict_steers_the_decoding_and_is_not_shown() -> None:
    found = request({"tools": [tool(strict=True, parameters=SCHEMA)]})
    assert isinstance(found.prompt, ChatPrompt)
    assert "strict" not in found.prompt.tools[0]["function"]
    assert found.answer.tools is not None
    assert found.answer.tools.strict


def test_a_choice_of_none_shows_no_tools() -> None:
    assert request({"tools": [WEATHER], "tool_choice": "none"}) == request({})


def test_a_required_and_a_named_choice() -> None:
    required = request({"tools": [WEATHER, TIME], "tool_choice": "required"}).answer.tools
    assert required is not None
    assert (required.names, required.required) == (("weather", "time"), True)
    choice = {"type": "function", "function": {"name": "time"}}
    named = request({"tools": [WEATHER, TIME], "tool_choice": choice})
    assert named.answer.tools == ToolChoice(
        ("time",), (NO_ARGUMENTS,), required=True, parallel=False
    )
    assert isinstance(named.prompt, ChatPrompt)
    assert len(named.prompt.tools) == 2


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "invalid_value",
            "tool_choice.function.name",
        ),
        ({"tools": [{"type": "web_search"}]}, "missing_required_parameter", "tools[0].function"),
        ({"tools": [tool() | {"type": "custom"}]}, "unsupported_value", "tools[0].type"),
        ({"tools": [tool(), tool()]}, "invalid_value", "tools"),
        ({"tools": [tool(name="no spaces")]}, "invalid_value", "tools[0].function.name"),
        (
            {"tools": [WEATHER, tool(parameters={"$ref": "#"})]},
            "invalid_schema",
            "tools[1].function.parameters",
        ),
        (
            {"tools": [tool(parameters={"type": "string"})]},
            "invalid_schema",
            "tools[0].function.parameters",
        ),
        ({"tools": [tool()] * 129}, "array_above_max_length", "tools"),
    ],
)
def test_bad_tools_are_named_by_their_place(body: dict[str, Any], code: str, param: str) -> None:
    assert failure(body) == (code, param)


def called(arguments: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}


def test_earlier_calls_and_their_results_are_messages() -> None:
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [called('{"a": "Oslo"}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    found = request({"messages": messages})
    assert isinstance(found.prompt, ChatPrompt)
    _, call, result = found.prompt.messages
    assert call["content"] is None
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"a": "Oslo"}}
    assert result == {"role": "tool", "content": "rain", "tool_call_id": "call_1"}


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "tool", "content": "x"}, "missing_required_parameter", "tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "invalid_value", "tool_call_id"),
        (
            {"role": "user", "content": "x", "tool_calls": [called("{}")]},
            "invalid_value",
            "tool_calls",
        ),
        (
            {"role": "assistant", "tool_calls": [called("[1]")]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [called("{")]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "tool_calls": []}, "missing_required_parameter", "content"),
    ],
)
def test_a_bad_call_among_the_messages_is_named(
    message: dict[str, Any], code: str, param: str
) -> None:
    assert failure({"messages": [*HI, message]}) == (code, f"messages[1].{param}")
