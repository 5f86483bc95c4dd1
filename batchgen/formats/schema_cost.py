"""How much work it is to look whether a value is valid against a schema, at most.

A validator follows a reference each time it meets one: forty definitions that each name the next
one twice are a million million evaluations for one small value. So they are counted before, by the
depth of the value, which takes a look at each part of the schema for each level.
"""

from collections.abc import Callable, Iterator
from typing import Any

# So deep, what depends on the depth is not counted any further.
MOST_LEVELS = 128
ENDLESS = 10**18

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_GROUPS = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")


class SchemaCost:
    """For one schema, whose references `target` resolves."""

    def __init__(self, schema: Any, target: Callable[[str], Any]) -> None:
        self._schema = schema
        self._target = target
        self._known: dict[tuple[int, int], int] = {}
        self._by_depth: list[int] = []

    def evaluations(self, value: Any) -> int:
        """How many schemas are applied at most; ENDLESS where that cannot be told."""
        levels, n_values = _size(value)
        try:
            # From below, so that no count waits for many others.
            while len(self._by_depth) <= min(levels, MOST_LEVELS):
                self._by_depth.append(self._cost(self._schema, len(self._by_depth)))
        except RecursionError:
            return ENDLESS
        if levels > MOST_LEVELS and self._by_depth[-1] > self._by_depth[-2]:
            return ENDLESS
        return self._by_depth[min(levels, MOST_LEVELS)] * n_values

    def _cost(self, schema: Any, depth: int) -> int:
        """Of one value of that depth, and of one member or item of each value below it."""
        if not isinstance(schema, dict):
            return 1
        key = (id(schema), depth)
        if key not in self._known:
            again = 2 if any(name.startswith("unevaluated") for name in schema) else 1
            same = sum(self._cost(child, depth) for child in self._of_same_value(schema))
            names = self._cost(schema["propertyNames"], 0) if "propertyNames" in schema else 0
            below = self._below(schema, depth - 1) if depth else 0
            self._known[key] = min(1 + again * same + names + below, ENDLESS)
        return self._known[key]

    def _of_same_value(self, schema: dict[str, Any]) -> Iterator[Any]:
        for name in _REFERENCES:
            if isinstance(schema.get(name), str):
                yield self._target(schema[name])
        for name in _SAME_VALUE:
            if name in schema:
                yield schema[name]
        for name in _SAME_VALUE_GROUPS:
            yield from _parts(schema.get(name))

    def _below(self, schema: dict[str, Any], depth: int) -> int:
        one = [self._cost(part, depth) for part in _parts(schema.get("properties"))]
        members = max(one, default=0) + sum(
            self._cost(part, depth)
            for part in [
                *_parts(schema.get("patternProperties")),
                *(schema[name] for name in _MEMBERS if name in schema),
            ]
        )
        tuples = [schema.get("prefixItems"), schema.get("items")]
        one = [self._cost(part, depth) for t in tuples if isinstance(t, list) for part in t]
        items = max(one, default=0) + sum(
            self._cost(schema[name], depth)
            for name in _ITEMS
            if name in schema and not isinstance(schema[name], list)
        )
        return max(members, items)


def _parts(group: Any) -> list[Any]:
    if isinstance(group, dict):
        return [*group.values()]
    return group if isinstance(group, list) else []


def _size(value: Any) -> tuple[int, int]:
    """How many levels lie below a JSON value, and how many values it is made of."""
    levels, n_values, level = -1, 0, [value]
    while level:
        levels, n_values = levels + 1, n_values + len(level)
        level = [part for parent in level for part in _parts(parent)]
    return levels, n_values
