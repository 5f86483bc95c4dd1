"""A model as names and values, for a person."""

from typing import Any


def fields_of(model: dict[str, Any]) -> dict[str, object]:
    """What a person wants to know of a model."""
    from batchgen.cli.render import clock_time

    out: dict[str, object] = {
        "model": model["id"],
        "revision": model["revision"],
        "engine": model["engine"],
        "fingerprint": model["fingerprint"],
        "content": model.get("content_hash"),
        "draft content": model.get("draft_content_hash"),
        "pool": model["pool"],
        "served by": model["device"] or "any device",
        "created": clock_time(model["created"]),
    }
    if out["draft content"] is None:
        del out["draft content"]
    out.update(flat(model["spec"]))
    return out


def print_warnings(described: dict[str, Any], *, name: str | None = None) -> None:
    """To standard error, before them the model's name where there are several."""
    from batchgen.cli.render import note

    for warning in described.get("warnings", ()):
        note(f"warning: {warning}" if name is None else f"warning: {name}: {warning}")


def flat(spec: dict[str, Any], above: str = "") -> dict[str, object]:
    """Nested settings as one level, their names joined with dots; what is not set is left out."""
    out: dict[str, object] = {}
    for name, value in spec.items():
        if isinstance(value, dict):
            out.update(flat(value, f"{above}{name}."))
        elif value is not None and name != "engine":
            out[f"{above}{name}"] = value if isinstance(value, bool | float) else str(value)
    return out
