"""Compile caches as values: an entry holds what was compiled for one namespace."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class CacheState(StrEnum):
    """What an entry is good for.

    `rejected`: the runtime compiled anew although the compiled model was there, so nothing is kept.
    `quarantined`: damaged, or an engine loaded only without it; moved aside.
    """

    EMPTY = "empty"
    USABLE = "usable"
    REJECTED = "rejected"
    QUARANTINED = "quarantined"


class CacheDeed(StrEnum):
    """What the holder of an entry's lease does with it."""

    COMPILE = "compile"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class CacheKey:
    """An entry's place: the directory's own name for itself, and the folder in it."""

    root_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An entry as the database knows it.

    `identity` is the compile identity it was made for. `age_s` counts from its last use, by the
    database's clock. `writer` holds a live lease; `in_use_by` are live devices with an engine that
    was loaded with it.
    """

    key: CacheKey
    root_path: str
    host: str
    namespace: str
    identity: Mapping[str, Any]
    model_path: str
    state: CacheState
    reason: str | None
    bytes: int
    n_files: int
    created_at: datetime
    last_used_at: datetime
    age_s: float
    used_by: str | None
    writer: str | None
    in_use_by: tuple[str, ...]
    doomed: bool

    @property
    def busy(self) -> bool:
        """Whether removing it would take something away from somebody."""
        return self.writer is not None or bool(self.in_use_by)
