"""Answers in a form, on the real engine: what keeps to it, and what a bad form costs."""

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from batchgen.chat.tool_calls import call_grammar
from batchgen.chat.tool_formats import TOOL_PARSERS
from batchgen.demo.orders import MAX_TOKENS, held_out
from batchgen.domain.outcomes import Failed, FinishReason, Generation
from batchgen.domain.requests import (
    ChatPrompt,
    Grammar,
    GrammarKind,
    SamplingParams,
    ToolChoice,
)
from batchgen.engines.registry import refusal
from batchgen.engines.spec import DraftModel, PromptLookup
from batchgen.formats.schemas import answer_fault
from tests.conformance.conftest import MODEL, Loaded, load, openvino_spec, ordinary_spec
from tests.waiting import until

pytest.importorskip("openvino_genai")
grammars = pytest.importorskip("batchgen.engines.openvino.grammars")

_TEXT = {"type": "string", "maxLength": 40}
ORDER = json.dumps(
    {
        "type": "object",
        "properties": {
            **dict.fromkeys(("customer", "city", "item"), _TEXT),
            "quantity": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "required": ["customer", "city", "item", "quantity"],
        "additionalProperties": False,
    }
)
DAYS = json.dumps(
    {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["days"],
        "additionalProperties": False,
    }
)
TICKET = r"\{\"qty\": [0-9]{1,3}, \"who\": \"[A-Z][a-z]{3,9}\"\}"
# What no compiler gets through within any bounds, and what overflows its stack.
ENDLESS = "((a{1,1000}){1,1000}){1,1000}"
DEEP = "(" * 50_000 + "a" + ")" * 50_000


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source, "structured_outputs.regex")


def schema(source: str) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, source)


@pytest.fixture(scope="module")
def plain() -> Iterator[Loaded]:
    made = load(openvino_spec())
    yield made
    made.engine.close()


def orders(loaded: Loaded, grammar: Grammar, n: int = 12) -> list[Generation]:
    prompts = [loaded.encoder.encode(ChatPrompt(tuple(o.messages()))) for o in held_out(n)]
    results = loaded.run(
        *(loaded.request(ids, max_tokens=MAX_TOKENS, grammar=grammar) for ids in prompts)
    )
    assert all(isinstance(result, Generation) for result in results), results
    return [result for result in results if isinstance(result, Generation)]


def ended(loaded: Loaded, results: list[Generation]) -> list[str]:
    """The texts that were not cut at their limit; there must be some."""
    whole = [r for r in results if r.choices[0].finish_reason is FinishReason.STOP]
    assert whole
    return [loaded.text(result) for result in whole]


def test_a_json_schema_makes_valid_json(plain: Loaded) -> None:
    texts = ended(plain, orders(plain, schema(ORDER)))
    assert [answer_fault(text, ORDER) for text in texts] == [None] * len(texts)


def test_a_regex_is_matched_whole(plain: Loaded) -> None:
    texts = ended(plain, orders(plain, regex(TICKET)))
    assert all(re.fullmatch(TICKET, text) for text in texts)


def test_an_ebnf_grammar_is_kept_to(plain: Loaded) -> None:
    grammar = Grammar(GrammarKind.EBNF, 'root ::= "yes" | "no" | "Ä\\"\\n€"')
    result = plain.one(max_tokens=16, grammar=grammar)
    assert plain.text(result) in ("yes", "no", 'Ä"\n€')
    assert result.choices[0].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    "speculation",
    [
        {"draft": DraftModel(path=str(MODEL), num_assistant_tokens=4)},
        {"prompt_lookup": PromptLookup(num_assistant_tokens=4)},
    ],
    ids=["draft", "lookup"],
)
def test_speculation_keeps_to_the_form_as_well(speculation: dict[str, Any]) -> None:
    loaded = load(openvino_spec(**speculation))
    try:
        texts = ended(loaded, orders(loaded, regex(TICKET)))
    finally:
        loaded.engine.close()
    assert all(re.fullmatch(TICKET, text) for text in texts)


@pytest.mark.parametrize("parser", sorted(TOOL_PARSERS))
@pytest.mark.parametrize("arguments", [DAYS, '{"type": "object", "properties": {}}'])
def test_a_call_that_is_required_is_one_that_its_parser_reads(
    plain: Loaded, parser: str, arguments: str
) -> None:
    choice = ToolChoice(("weather",), (arguments,), required=True, parallel=False)
    result = plain.one(max_tokens=300, grammar=call_grammar(TOOL_PARSERS[parser], choice))
    if result.choices[0].finish_reason is FinishReason.STOP:  # or it went on with blanks
        rest, calls = TOOL_PARSERS[parser].parse(plain.text(result), choice)
        assert (rest, [call.name for call in calls]) == ("", ["weather"])
        assert answer_fault(calls[0].arguments, arguments) is None


@pytest.mark.parametrize("parser", sorted({*TOOL_PARSERS} - {"llama3_json"}))
def test_strict_functions_leave_other_text_free(plain: Loaded, parser: str) -> None:
    choice = ToolChoice(("weather",), (DAYS,), strict=True)
    held = plain.one(max_tokens=40, grammar=call_grammar(TOOL_PARSERS[parser], choice))
    assert plain.text(held) == plain.text(plain.one(max_tokens=40))


@pytest.mark.parametrize(
    ("grammar", "code"),
    [
        (regex("foo**"), "invalid_grammar"),
        (regex("["), "invalid_grammar"),
        (regex("(?=a)b"), "invalid_grammar"),
        (regex(DEEP), "grammar_too_costly"),
        (schema('{"type": "nonsense"}'), "invalid_grammar"),
        (schema("no JSON"), "invalid_grammar"),
        (Grammar(GrammarKind.EBNF, 'start ::= "a"'), "invalid_grammar"),
        (Grammar(GrammarKind.STRUCTURAL_TAG, "{}", "tools"), "invalid_grammar"),
    ],
)
def test_a_bad_grammar_ends_its_own_request_only(
    plain: Loaded, grammar: Grammar, code: str
) -> None:
    good, bad, free = plain.run(
        plain.request(max_tokens=30, grammar=regex(TICKET)),
        plain.request(grammar=grammar),
        plain.request(),
    )
    assert isinstance(good, Generation)
    assert isinstance(free, Generation)
    assert isinstance(bad, Failed)
    assert (bad.status_code, bad.code, bad.param) == (400, code, grammar.param)
    assert ".cc:" not in bad.message


def test_a_grammar_that_takes_too_long_to_compile_costs_its_process() -> None:
    checks = grammars.GrammarChecks(MODEL, cpu_limit_s=1)
    slow, good = regex(ENDLESS), regex("[0-9]{3}")
    for grammar in (slow, good):
        checks.ask(grammar)
    until(lambda: checks.hear(1.0) or not checks.busy, timeout_s=100)
    checks.close()
    failure = checks.failure(slow)
    assert failure is not None
    assert failure.code == "grammar_too_costly"
    assert checks.failure(good) is None


def test_a_grammar_that_takes_too_much_memory_is_refused() -> None:
    """Of 128 MB here; a service gives it 2 GiB."""
    checks = grammars.GrammarChecks(MODEL, memory_limit_bytes=128 << 20, cpu_limit_s=60)
    large = schema(json.dumps({"enum": [f"value{i}" for i in range(200_000)]}))
    small = regex("[0-9]{3}")
    for grammar in (large, small):
        checks.ask(grammar)
    until(lambda: checks.hear(1.0) or not checks.busy, timeout_s=100)
    checks.close()
    failure = checks.failure(large)
    assert failure is not None
    assert failure.code == "grammar_too_costly"
    assert checks.failure(small) is None


def test_a_process_that_was_killed_while_it_waited_costs_no_grammar() -> None:
    checks = grammars.GrammarChecks(MODEL)
    checks.ask(regex("a"))
    until(lambda: checks.hear(1.0) or not checks.busy, timeout_s=100)
    assert checks.pid is not None
    os.kill(checks.pid, signal.SIGKILL)  # as the kernel does when memory runs out
    checks.ask(regex("b"))
    until(lambda: checks.hear(1.0) or not checks.busy, timeout_s=100)
    checks.close()
    assert checks.failure(regex("b")) is None


def test_a_verdict_is_kept_by_the_grammars_content() -> None:
    checks = grammars.GrammarChecks(MODEL)
    checks.ask(regex("foo**"))
    until(lambda: checks.hear(1.0) or not checks.busy, timeout_s=100)
    checks.close()
    elsewhere = Grammar(GrammarKind.REGEX, "foo**", "tools")
    assert checks.knows(elsewhere)
    failure = checks.failure(elsewhere)
    assert failure is not None
    assert failure.param == "tools"
    assert not checks.knows(Grammar(GrammarKind.EBNF, "foo**"))


def test_a_model_that_cannot_be_read_is_an_error_of_the_service() -> None:
    checks = grammars.GrammarChecks(MODEL / "nothing")
    checks.ask(regex("a"))
    until(lambda: checks.hear(1.0) or not checks.busy, timeout_s=100)
    failure = checks.failure(regex("a"))
    assert failure is not None
    assert (failure.status_code, failure.code) == (500, "grammar_not_checked")


def test_a_cancelled_request_does_not_wait_for_its_grammar(plain: Loaded) -> None:
    request = plain.request(grammar=regex("[a-f]{4}-not-seen-before"))
    plain.engine.submit([request])
    assert plain.engine.stats().waiting == 1
    assert plain.engine.cancel([request.id]) == [request.id]
    assert not plain.engine.has_work()


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"n": 2, "temperature": 1.0}, "n"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_contradicts_a_form_is_refused(
    plain: Loaded, sampling: dict[str, Any], param: str
) -> None:
    (result,) = plain.run(plain.request(grammar=regex("a+"), **sampling))
    assert isinstance(result, Failed)
    assert (result.code, result.param) == ("unsupported_parameter", param)


def test_the_simulated_engine_says_that_it_keeps_to_no_form() -> None:
    spec = ordinary_spec("simulated")
    loaded = load(spec)
    (result,) = loaded.run(loaded.request(grammar=schema(ORDER)))
    assert isinstance(result, Failed)
    assert (result.code, result.param) == ("unsupported_parameter", "response_format")
    assert refusal(spec, SamplingParams(grammar=schema(ORDER))) == result
