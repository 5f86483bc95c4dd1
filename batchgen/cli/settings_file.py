"""Settings in a file: JSON, TOML or YAML, by its suffix, and in YAML on which line each stands."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchgen.domain.errors import InvalidRequest

Place = tuple[str, ...]
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a file holds. `lines` are those of its keys, where its form tells them."""

    path: Path
    settings: dict[str, Any]
    lines: Mapping[Place, int] = field(default_factory=dict)


def read_settings(path: Path, *, option: str = "FILE") -> SettingsFile:
    """Raises InvalidRequest where the file is not of its form, or says a thing twice."""
    lines: dict[Place, int] = {}
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix:
            case ".json":
                value = json.loads(text, object_pairs_hook=_once)
            case ".toml":
                value = tomllib.loads(text)
            case ".yaml" | ".yml":
                value = _yaml(text, lines)
            case other:
                raise InvalidRequest(
                    f"{path}: settings are a .json, .toml or .yaml file, not '{other}'",
                    param=option,
                )
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", param=option) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} must hold one object of settings", param=option)
    return SettingsFile(path, value, lines)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' is given twice")
    return out


def _yaml(text: str, lines: dict[Place, int]) -> Any:
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _note_lines(root, (), lines)
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    finally:
        loader.dispose()


def _note_lines(node: Any, place: Place, lines: dict[Place, int]) -> None:
    if getattr(node, "id", "") != "mapping":
        return
    if len(place) > _DEEPEST:
        raise ValueError(f"line {node.start_mark.line + 1}: nested deeper than {_DEEPEST} levels")
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.id != "scalar":
            raise ValueError(f"line {line}: a name must be plain text")
        name = str(key.value)
        if name in seen:
            raise ValueError(f"line {line}: '{name}' is given twice")
        seen.add(name)
        below = (*place, name)
        lines.setdefault(below, line)
        _note_lines(value, below, lines)
