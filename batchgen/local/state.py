"""What a running stack says of itself, in its data directory."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from batchgen.local import lock
from batchgen.settings import Settings


@dataclass(frozen=True, slots=True)
class PartState:
    """A process of the stack. `restarts` counts since the start of the stack."""

    name: str
    pid: int | None
    alive: bool
    restarts: int
    log_path: str


@dataclass(frozen=True, slots=True)
class StackState:
    """A stack: its supervisor's process id, where it is reached, and its processes.

    `phases` are the seconds that the steps of its start took; `warnings` say what it does without.
    """

    pid: int
    api_url: str
    database_url: str
    broker_url: str
    store_url: str
    ready: bool = False
    parts: tuple[PartState, ...] = ()
    warnings: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)


def lock_path(settings: Settings) -> Path:
    """The lock that the supervisor holds as long as it lives."""
    return settings.run_dir / "stack.lock"


def write_private(path: Path, value: dict[str, Any]) -> None:
    """Write JSON in one step, readable by its owner only: the URLs and keys in it give access."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def write_state(settings: Settings, state: StackState) -> None:
    write_private(settings.run_dir / "stack.json", asdict(state))


def clear_state(settings: Settings) -> None:
    (settings.run_dir / "stack.json").unlink(missing_ok=True)


def status(settings: Settings) -> StackState | None:
    """The stack that runs on the data directory; None where none does.

    The lock decides, not the file: a killed supervisor leaves the file behind. A stack that has
    just begun to start may not have written it yet: it is then one without URLs.
    """
    pid = lock.holder(lock_path(settings))
    if pid is None:
        return None
    try:
        value = json.loads((settings.run_dir / "stack.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        value = {}
    if value.get("pid") != pid:
        return StackState(pid=pid, api_url="", database_url="", broker_url="", store_url="")
    parts = tuple(PartState(**part) for part in value.pop("parts"))
    warnings = tuple(value.pop("warnings", ()))
    return StackState(parts=parts, warnings=warnings, **value)
