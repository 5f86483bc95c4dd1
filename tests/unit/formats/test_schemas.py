"""Schemas that users hand in: refused where they loop, reach out or are none; then kept to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.formats.schemas import MAX_SCHEMA_CHARS, answer_fault, schema_fault

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        }
    },
    "$ref": "#/$defs/node",
}
AGE = json.dumps(
    {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0}},
        "required": ["age"],
    }
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$ref", "$defs", "anyOf", "type", "properties", "a", "not", "items"]),
            inner | st.sampled_from(["#", "#/$defs/a", "object", "string"]),
            max_size=4,
        )
    ),
    max_leaves=15,
)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "#"}, "without end"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "without end"),
        ({"$defs": {"a": {"allOf": [{"not": {"$ref": "#/$defs/a"}}]}}}, "without end"),
        ({"$ref": "http://169.254.169.254/latest"}, "outside the schema"),
        ({"$dynamicRef": "#node"}, "outside the schema"),
        ({"properties": {"a": {"$ref": "#/$defs/nowhere"}}}, "points at nothing"),
        ({"type": "nonsense"}, "nonsense"),
        ({"anyOf": 3}, "not of type"),
        ({"$defs": {"a": {"$id": "http://x/a", "$ref": "#"}}}, "$id inside"),
        ({"pattern": "["}, "regex"),
        ({"pattern": "(?=a)b"}, "regex"),
        ({"$schema": "http://example.com/mine"}, "meta-schema"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema: dict[str, Any], says: str) -> None:
    fault = schema_fault(json.dumps(schema))
    assert fault is not None
    assert says in fault
    assert len(fault) <= 300


@pytest.mark.parametrize(
    "schema",
    [
        {},
        TREE,
        {"type": "object", "properties": {"$ref": {"type": "string"}}},
        {"type": "object", "properties": {"again": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": {"type": "null"}}},
    ],
)
def test_a_schema_may_refer_to_itself_inside_its_values(schema: dict[str, Any]) -> None:
    assert schema_fault(json.dumps(schema)) is None


def test_a_schema_has_a_size_and_a_depth() -> None:
    assert "characters" in (schema_fault(" " * (MAX_SCHEMA_CHARS + 1)) or "")
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    assert "deep" in (schema_fault(json.dumps(deep)) or "")
    assert "deep" in (schema_fault('{"a":' * 9_000 + "1" + "}" * 9_000) or "")


def test_long_chains_of_references_are_followed_in_linear_time() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2_000)} | {"d2000": {}}
    assert schema_fault(json.dumps({"$defs": chain})) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"age": -1}', "age: -1 is less than"),
        ("{}", "required"),
        ('{"age": 1', "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_an_answer_that_is_not_valid_says_where(text: str, says: str) -> None:
    assert says in (answer_fault(text, AGE) or "")


def test_a_valid_answer_has_no_fault() -> None:
    assert answer_fault(' {"age": 3}\n', AGE) is None


def test_a_pattern_runs_in_linear_time() -> None:
    schema = json.dumps({"pattern": "^(a+)+$"})
    assert schema_fault(schema) is None
    assert answer_fault(json.dumps("a" * 5_000 + "!"), schema) is not None


def doubling(n: int, last: dict[str, Any], inside: str | None = None) -> str:
    """Definitions of which each names the next one twice, for the same value or for its items."""
    schemas: dict[str, Any] = {f"d{n}": last}
    for i in range(n):
        twice: dict[str, Any] = {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
        schemas[f"d{i}"] = twice if inside is None else {inside: twice}
    return json.dumps({"$defs": schemas, "$ref": "#/$defs/d0"})


@pytest.mark.parametrize("inside", [None, "items", "additionalProperties"])
def test_references_that_multiply_are_not_followed_without_end(inside: str | None) -> None:
    source = doubling(60, {"not": {}}, inside)
    assert schema_fault(source) is None
    opened, closed = ('{"a":', "}") if inside == "additionalProperties" else ("[", "]")
    text = '"a"' if inside is None else opened * 60 + '"a"' + closed * 60
    assert "multiply" in (answer_fault(text, source) or "")
    assert answer_fault(text, doubling(16, {"not": {}}, inside)) == (
        "it is not valid against the schema"
    )
    assert answer_fault(text, doubling(16, {}, inside)) is None


def test_a_schema_that_refers_to_itself_twice_a_level_is_followed_so_far() -> None:
    source = json.dumps({"items": {"anyOf": [{"$ref": "#"}] * 2}, "type": "array"})
    assert answer_fault("[" * 12 + "]" * 12, source) is None
    assert "multiply" in (answer_fault("[" * 60 + "1" + "]" * 60, source) or "")


def test_long_answers_of_schemas_that_refer_to_themselves_are_checked() -> None:
    source = json.dumps(TREE)
    text = '{"next":' * 120 + "null" + "}" * 120
    assert answer_fault(text, source) is None
    pair = {
        "anyOf": [
            {"type": "integer"},
            {
                "type": "object",
                "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}},
                "required": ["left", "right"],
            },
        ]
    }
    tree: Any = 1
    for _ in range(10):
        tree = {"left": tree, "right": tree}
    assert answer_fault(json.dumps(tree), json.dumps(pair)) is None


@given(values)
def test_whatever_the_schema_there_is_an_answer_to_it(value: Any) -> None:
    source = json.dumps(value)
    if schema_fault(source) is None:
        answer_fault('{"a": [1, {"a": null}]}', source)
