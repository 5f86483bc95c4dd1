"""The file that declares all models: `models`, and under it each model by its name.

models:
  orders:
    path: models/orders-ov      # from this file's directory, or absolute on the server
    device: GPU.0               # as --device of `model add`
    scheduler_config:
      max_num_seqs: 64
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.cli.engine_flags import make_paths_absolute
from batchgen.cli.settings_file import Place, read_settings
from batchgen.domain.errors import InvalidRequest, UnknownOption

_ROOT = "models"


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The declared models, and on which line of the file each of their settings stands."""

    path: Path
    models: dict[str, dict[str, Any]]
    lines: Mapping[Place, int]

    def located(self, message: str) -> str:
        """A server's message with the file and line before each line of it that names a place."""
        return "\n".join(self._located(line) for line in message.splitlines())

    def _located(self, fault: str) -> str:
        place, colon, reason = fault.partition(": ")
        # The longest first: a model's name may hold dots, too.
        for name in sorted(self.models, key=len, reverse=True):
            whole = f"{_ROOT}.{name}"
            if colon and (place == whole or place.startswith(f"{whole}.")):
                line = self._line(name, tuple(place[len(whole) + 1 :].split(".")))
                at = f"{self.path}:{line}" if line else str(self.path)
                return f"{at}: {place}: {reason}"
        return f"{self.path}: {fault}"

    def _line(self, name: str, setting: Place) -> int | None:
        """That of the setting, else of the one that is called the same, else of the model."""
        entry = (_ROOT, name)
        exact = self.lines.get((*entry, *setting))
        alike = (
            line
            for place, line in self.lines.items()
            if place[:2] == entry and len(place) > len(entry) and place[-1] == setting[-1]
        )
        return exact or next(alike, None) or self.lines.get(entry)


def read_fleet(path: Path) -> FleetFile:
    """Raises InvalidRequest where the file does not declare models."""
    file = read_settings(path)
    for name in file.settings:
        if name != _ROOT:
            raise UnknownOption.named(name, [_ROOT], where=str(path))
    entries = file.settings.get(_ROOT)
    if not isinstance(entries, dict):
        raise InvalidRequest(f"{path} must hold an object `{_ROOT}`, a model under each name in it")
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            line = file.lines.get((_ROOT, name))
            at = f"{path}:{line}" if line else str(path)
            raise InvalidRequest(f"{at}: {_ROOT}.{name} must be an object of settings")
        make_paths_absolute(entry, path.resolve().parent)
    return FleetFile(path, entries, file.lines)
