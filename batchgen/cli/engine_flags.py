"""The engine settings of `model add`: a file's, flags over them, --set over both."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchgen.cli.options import settings_tree
from batchgen.cli.settings_file import read_settings
from batchgen.domain.errors import InvalidRequest


def spec_of(
    engine: str | None, spec_file: Path | None, flags: Mapping[str, Any], pairs: list[str]
) -> dict[str, Any]:
    """The engine spec: the file's settings, the flags over them, then --set.

    `flags` has dotted names, None for those not given. Raises InvalidRequest where the file cannot
    be read, or a setting is given both by flag and --set.
    """
    from batchgen.cli.spec_flags import place_in

    spec = {} if spec_file is None else dict(read_settings(spec_file, option="--spec").settings)
    if engine is not None:
        spec["engine"] = engine
    spec.setdefault("engine", "openvino")
    given = settings_tree(pairs)
    for name, value in flags.items():
        if value is None:
            continue
        place = place_in(spec["engine"], name)
        if _has(given, place):
            raise InvalidRequest(f"'{place}' is given by its flag and by --set", param=place)
        above, last = _place(spec, place)
        above[last] = value
    merge(spec, given)
    make_paths_absolute(spec, Path())
    return spec


def json_value(text: str, option: str, kind: type) -> Any:
    """An option's JSON of this kind, dict or list. Raises InvalidRequest for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} is not JSON: {error}", param=option) from error
    if not isinstance(value, kind):
        name = "object" if kind is dict else "array"
        raise InvalidRequest(f"{option} must be a JSON {name}", param=option)
    return value


def make_paths_absolute(spec: dict[str, Any], directory: Path) -> None:
    """A path that exists here is meant from `directory`; any other is the server's to judge."""
    for name in ("path", "draft.path", "lora.path"):
        if not _has(spec, name):
            continue
        place, last = _place(spec, name)
        if isinstance(place[last], str):
            path = directory / Path(place[last]).expanduser()
            if path.exists():
                place[last] = str(path.resolve())


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
