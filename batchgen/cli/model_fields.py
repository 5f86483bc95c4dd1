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
        "pool": model["pool"],
        "device": model["device"],
        "created": clock_time(model["created"]),
    }
    out.update(flat(model["spec"]))
    return out


def flat(spec: dict[str, Any], above: str = "") -> dict[str, object]:
    """Nested settings as one level, their names joined with dots; what is not set is left out."""
    out: dict[str, object] = {}
    for name, value in spec.items():
        if isinstance(value, dict):
            out.update(flat(value, f"{above}{name}."))
        elif value is not None and name != "engine":
            out[f"{above}{name}"] = value if isinstance(value, bool | float) else str(value)
    return out
