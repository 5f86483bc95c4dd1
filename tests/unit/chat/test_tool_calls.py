"""Tool calls are found in what models write, and nothing else is taken for one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.chat.tool_calls import Call, call_grammar
from batchgen.chat.tool_formats import TOOL_PARSERS, parser_name, shows_tools
from batchgen.domain.errors import InvalidRequest
from batchgen.domain.requests import GrammarKind, ToolChoice

WEATHER = json.dumps(
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
)
CHOICE = ToolChoice(("weather", "time"), (WEATHER, '{"type":"object"}'))
OSLO = Call("weather", '{"city": "Oslo"}')
NOON = Call("time", "{}")
JSON_OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'

WRITTEN = [
    ("hermes", f"<tool_call>\n{JSON_OSLO}\n</tool_call>", "", [OSLO]),
    ("hermes", f"Let me see.\n<tool_call>{JSON_OSLO}</tool_call>\n", "Let me see.", [OSLO]),
    (
        "hermes",
        f'<tool_call>{JSON_OSLO}</tool_call>\n<tool_call>{{"name":"time"}}</tool_call>',
        "",
        [OSLO, NOON],
    ),
    ("hermes", f"<tool_call>{JSON_OSLO}", "", [OSLO]),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>',
        "",
        [OSLO],
    ),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
        "",
        [Call("weather", '{"city": "</tool_call>"}')],
    ),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Oslo"}}', "", [OSLO]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "time"}',
        "",
        [OSLO, NOON],
    ),
    ("mistral", f"[TOOL_CALLS][{JSON_OSLO}]", "", [OSLO]),
    (
        "mistral",
        f'One moment. [TOOL_CALLS] [{JSON_OSLO}, {{"name":"time"}}]',
        "One moment.",
        [OSLO, NOON],
    ),
    (
        "mistral",
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]time[ARGS]{}',
        "",
        [OSLO, NOON],
    ),
    ("mistral_named", '[TOOL_CALLS]weather[CALL_ID]a1b2[ARGS]{"city": "Oslo"}', "", [OSLO]),
    ("mistral_named", '[TOOL_CALLS]weather{"city": "Oslo"}', "", [OSLO]),
    (
        "qwen3_coder",
        (
            "Well.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
        ),
        "Well.",
        [Call("weather", '{"city": "Oslo", "days": 3}')],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>",
        "",
        [Call("weather", '{"city": "12"}')],
    ),
]
NO_CALLS = [
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": '),
    ("hermes", '<tool_call>{"name": "launch", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"days": NaN}}</tool_call>'),
    ("hermes", "<tool_call><tool_call></tool_call>"),
    ("llama3_json", f"Here you are: {JSON_OSLO}"),
    ("llama3_json", f"{JSON_OSLO} and so on"),
    ("llama3_json", '{"name": "Bob", "age": 3}'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", f"[TOOL_CALLS][{JSON_OSLO}] and so on"),
    ("mistral", "[TOOL_CALLS]launch[ARGS]{}"),
    ("qwen3_coder", "<tool_call><function=launch></function></tool_call>"),
    ("qwen3_coder", "<function=weather>city Oslo</function>"),
    ("qwen3_coder", "<function=weather><parameter=city>Oslo"),
]


@pytest.mark.parametrize(("parser", "text", "rest", "calls"), WRITTEN)
def test_calls_are_found(parser: str, text: str, rest: str, calls: list[Call]) -> None:
    assert TOOL_PARSERS[parser].parse(text, CHOICE) == (rest, calls)


@pytest.mark.parametrize(("parser", "text"), NO_CALLS)
def test_what_is_no_call_of_an_offered_function_stays_text(parser: str, text: str) -> None:
    assert TOOL_PARSERS[parser].parse(text, CHOICE) == (text, [])


def test_a_model_that_begins_calls_over_and_over_is_read_in_linear_time() -> None:
    text = "<function=weather>" * 100_000
    assert TOOL_PARSERS["qwen3_coder"].parse(text, CHOICE) == (text, [])


def test_arguments_are_given_as_the_model_wrote_them() -> None:
    written = '{"city" : "Osl\\u00f8", "days":1e400, "days":3}'
    text = f'<tool_call>{{"name": "weather", "arguments": {written}}}</tool_call>'
    assert TOOL_PARSERS["hermes"].parse(text, CHOICE) == ("", [Call("weather", written)])


# Pieces of calls in any order: what a model writes that has lost its way.
pieces = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", ";", ","),
            *(JSON_OSLO, '{"name": "time"}', "weather", "{", "}", "[", "]", '"', "\\", " ", "\n"),
            *("<function=weather>", "<parameter=city>", "</parameter>", "</function>", "{}", "ö"),
        ]
    )
    | st.text(max_size=4),
    max_size=14,
).map("".join)


@given(st.sampled_from(sorted(TOOL_PARSERS)), pieces)
def test_whatever_the_text_calls_are_objects_and_the_rest_is_kept(parser: str, text: str) -> None:
    rest, calls = TOOL_PARSERS[parser].parse(text, CHOICE)
    for call in calls:
        assert call.name in CHOICE.names
        assert isinstance(json.loads(call.arguments), dict)
    if not calls:
        assert rest == text
    # What is left stands in the text in this order; only calls and blanks are gone from it.
    at = 0
    for character in rest:
        at = text.index(character, at) + 1


@given(
    st.sampled_from(["hermes", "llama3_json", "mistral"]),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=8), max_size=3),
)
def test_a_call_is_read_back_as_it_was_meant(parser: str, arguments: dict[str, Any]) -> None:
    """Written between the very texts that a grammar would hold the model to."""
    written = TOOL_PARSERS[parser]
    tags = written.tags(CHOICE)
    assert tags is not None
    begin, end = tags.around[0]
    rest, calls = written.parse(begin + json.dumps(arguments) + end, CHOICE)
    assert rest == ""
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", arguments)]


# grammars


@pytest.mark.parametrize("parser", sorted(TOOL_PARSERS))
def test_a_required_call_is_held_to_the_offered_functions(parser: str) -> None:
    choice = ToolChoice(CHOICE.names, CHOICE.schemas, required=True)
    grammar = call_grammar(TOOL_PARSERS[parser], choice)
    assert grammar is not None
    assert (grammar.kind, grammar.param) == (GrammarKind.STRUCTURAL_TAG, "tool_choice")
    form = json.loads(grammar.source)["format"]
    assert form["at_least_one"]
    assert len(form["tags"]) == 2
    assert form["tags"][0]["content"]["json_schema"] == json.loads(WEATHER)


def test_a_free_choice_needs_no_grammar_but_strict_arguments_do() -> None:
    assert call_grammar(TOOL_PARSERS["hermes"], CHOICE) is None
    strict = ToolChoice(CHOICE.names, CHOICE.schemas, strict=True)
    grammar = call_grammar(TOOL_PARSERS["hermes"], strict)
    assert grammar is not None
    assert not json.loads(grammar.source)["format"]["at_least_one"]
    with pytest.raises(InvalidRequest):
        call_grammar(TOOL_PARSERS["llama3_json"], strict)


# which model writes how


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{% if tools %}<tool_call>\n{{ tool_call | tojson }}\n</tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call>\n<function=...>{% endif %}", "qwen3_coder"),
        ("{% if tools %}[TOOL_CALLS]{{ tools }}{% endif %}", "mistral"),
        ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{% endif %}", "mistral_named"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3_json"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
    ],
)
def test_a_template_tells_how_its_model_writes_calls(template: str, parser: str | None) -> None:
    assert parser_name(template) == parser
    assert shows_tools(template) == (parser is not None)
