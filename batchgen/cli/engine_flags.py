"""The engine settings of `model add`: flags for the common ones, a file or --set for all."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchgen.cli.options import settings_tree
from batchgen.domain.errors import InvalidRequest


def spec_of(
    engine: str | None, spec_file: Path | None, flags: Mapping[str, Any], pairs: list[str]
) -> dict[str, Any]:
    """The engine spec: the file's settings, the flags over them, then --set.

    `flags` has dotted names, None for those not given. Raises InvalidRequest where the file cannot
    be read, or a setting is given both by flag and --set.
    """
    spec = read_spec(spec_file) if spec_file is not None else {}
    if engine is not None:
        spec["engine"] = engine
    spec.setdefault("engine", "openvino")
    given = settings_tree(pairs)
    for name, value in flags.items():
        if value is None:
            continue
        above, last = _place(spec, name)
        if _has(given, name):
            raise InvalidRequest(f"'{name}' is given by its flag and by --set", param=name)
        above[last] = value
    merge(spec, given)
    for name in ("path", "draft.path"):
        _make_absolute(spec, name)
    return spec


def read_spec(path: Path) -> dict[str, Any]:
    """A spec file: JSON, TOML or (with PyYAML installed) YAML, by its suffix."""
    text = path.read_text(encoding="utf-8")
    try:
        match path.suffix:
            case ".json":
                value = json.loads(text)
            case ".toml":
                value = tomllib.loads(text)
            case ".yaml" | ".yml":
                value = _yaml(text)
            case other:
                raise InvalidRequest(
                    f"{path}: a spec is a .json, .toml or .yaml file, not '{other}'", param="--spec"
                )
    except ValueError as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", param="--spec") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} must hold one object of settings", param="--spec")
    return value


def json_object(text: str, option: str) -> dict[str, Any]:
    """An option's JSON object. Raises InvalidRequest for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} is not JSON: {error}", param=option) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{option} must be a JSON object", param=option)
    return value


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Put `over` into `base`, object by object."""
    for name, value in over.items():
        below = base.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            merge(below, value)
        else:
            base[name] = value


def _place(spec: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *above, last = name.split(".")
    place = spec
    for part in above:
        below = place.setdefault(part, {})
        if not isinstance(below, dict):
            raise InvalidRequest(f"'{part}' must be an object of settings", param=part)
        place = below
    return place, last


def _has(tree: Mapping[str, Any], name: str) -> bool:
    place: Any = tree
    for part in name.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return False
        place = place[part]
    return True


def _make_absolute(spec: dict[str, Any], name: str) -> None:
    """A path that exists here is meant from here; any other is the server's to judge."""
    if not _has(spec, name):
        return
    place, last = _place(spec, name)
    if isinstance(place[last], str):
        path = Path(place[last]).expanduser()
        if path.exists():
            place[last] = str(path.resolve())


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InvalidRequest(
            "a YAML spec needs PyYAML (`pip install pyyaml`); JSON and TOML need nothing",
            param="--spec",
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
