"""JSON schemas that users hand in: bounded, without loops, and what is valid against them.

Validation is by jsonschema-rs: patterns run in linear time, and nothing is ever fetched.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

import jsonschema_rs

from batchgen.formats.schema_cost import SchemaCost

MAX_SCHEMA_CHARS = 100_000
MAX_SCHEMA_DEPTH = 64
_MESSAGE_LIMIT = 300
_REMEMBERED = 256
# About half a second; to collect what is wrong takes far longer for each.
_MOST_EVALUATIONS, _MOST_EXPLAINED = 50_000_000, 100_000
# Keywords whose schemas apply to the same value as their parent: only there can a loop be endless.
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_GROUPS = ("allOf", "anyOf", "oneOf", "dependentSchemas")


def schema_fault(source: str) -> str | None:
    """Why a schema (a JSON text) cannot be used, or None."""
    if len(source) > MAX_SCHEMA_CHARS:
        return f"the schema has {len(source)} characters; at most {MAX_SCHEMA_CHARS} are taken"
    return _fault(source)


def answer_fault(text: str, source: str) -> str | None:
    """Why a text is no JSON value that is valid against a usable schema, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"[:_MESSAGE_LIMIT]
    cost = _cost(source)
    n_evaluations = 0 if cost is None else cost.evaluations(value)
    if n_evaluations > _MOST_EVALUATIONS:
        return "to check it against the schema takes too long: its references multiply"
    validator = _validator(source)
    if validator.is_valid(value):
        return None
    if n_evaluations > _MOST_EXPLAINED:
        return "it is not valid against the schema"
    wrong = next(iter(validator.iter_errors(value)))
    place = "/".join(map(str, wrong.instance_path)) or "the whole"
    return f"{place}: {wrong.message}"[:_MESSAGE_LIMIT]


@lru_cache(maxsize=_REMEMBERED)
def _fault(source: str) -> str | None:
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError):
        return "the schema is nested too deeply"
    if not isinstance(schema, dict):
        return "the schema is not an object"
    if _deeper_than(schema, MAX_SCHEMA_DEPTH):
        return f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep"
    wrong = _reference_fault(schema, [*_references(schema)])
    if wrong is not None:
        return wrong[:_MESSAGE_LIMIT]
    try:
        _validator(source)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return str(error).split("\n", 1)[0][:_MESSAGE_LIMIT]
    return None


def _reference_fault(schema: Any, references: list[Any]) -> str | None:
    if references and _has_resources(schema):
        return "$id inside the schema: its references would mean something else, leave it out"
    for reference in references:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return f"$ref {reference!r} points outside the schema"
        if _target(schema, reference) is None:
            return f"$ref {reference!r} points at nothing"
    leads_to = {r: [*_refs_for_same_value(_target(schema, r))] for r in set(references)}
    try:
        TopologicalSorter(leads_to).prepare()
    except CycleError as error:
        return f"$ref {error.args[1][0]!r} leads back to itself without end"
    return None


@lru_cache(maxsize=_REMEMBERED)
def _cost(source: str) -> SchemaCost | None:
    """None where there are no references, which could multiply."""
    schema = json.loads(source)
    if not any(True for _ in _references(schema)):
        return None
    return SchemaCost(schema, lambda reference: _target(schema, reference))


@lru_cache(maxsize=_REMEMBERED)
def _validator(source: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        json.loads(source), pattern_options=jsonschema_rs.RegexOptions(), offline=True
    )


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else []


def _references(value: Any) -> Iterator[Any]:
    """Every `$ref` in the schema; a property of that name is none."""
    if isinstance(value, dict):
        for name, child in value.items():
            if name in _REFERENCES and not isinstance(child, dict):
                yield child
            else:
                yield from _references(child)
    elif isinstance(value, list):
        for child in value:
            yield from _references(child)


def _has_resources(schema: Any) -> bool:
    """Whether a part of the schema is one of its own, which references are then relative to."""
    level = _children(schema)
    while level:
        if any(isinstance(part, dict) and isinstance(part.get("$id"), str) for part in level):
            return True
        level = [child for parent in level for child in _children(parent)]
    return False


def _target(schema: Any, reference: str) -> Any:
    """The schema that a local reference names, None where there is none."""
    at = schema
    for escaped in reference.split("/")[1:]:
        step = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isdecimal() and int(step) < len(at):
            at = at[int(step)]
        else:
            return None
    return at


def _refs_for_same_value(value: Any) -> Iterator[str]:
    """The references that apply to the very value that the schema `value` applies to."""
    if not isinstance(value, dict):
        return
    if isinstance(value.get("$ref"), str):
        yield value["$ref"]
    for name in _SAME_VALUE:
        yield from _refs_for_same_value(value.get(name))
    for name in _SAME_VALUE_GROUPS:
        for child in _children(value.get(name)):
            yield from _refs_for_same_value(child)
