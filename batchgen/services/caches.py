"""Compile caches over all hosts: what there is, what of it is stale, what is to go.

Who decides need not reach the directory: entries are marked here, and removed by a worker of a host
that has the directory (`remove_marked`).
"""

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from batchgen.domain.caches import CacheDeed, CacheEntry, CacheKey, CacheState
from batchgen.domain.errors import InvalidRequest, LostLease
from batchgen.engines.compile_identity import CompileIdentity
from batchgen.settings import Settings
from batchgen.storage import caches, models
from batchgen.storage.cache_directory import CacheDirectory, load_owner
from batchgen.storage.session import Database

log = structlog.get_logger(__name__)

# So old, the directory of a load whose device lives no more has lost its load.
_ABANDONED_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Judged:
    """An entry, the registered models that lie where its model lay, and why it is of no use any
    more (None: it is).
    """

    entry: CacheEntry
    models: tuple[str, ...]
    stale: str | None


@dataclass(frozen=True, slots=True)
class Wish:
    """What shall be removed: each given bound by itself. `max_bytes` is for each directory."""

    max_bytes: int | None = None
    older_than_s: float | None = None
    stale: bool = False

    @property
    def empty(self) -> bool:
        return self.max_bytes is None and self.older_than_s is None and not self.stale


def judged(database: Database, settings: Settings) -> list[Judged]:
    """All entries, the last used first."""
    with database.unit_of_work() as tx:
        entries = caches.every(tx, settings.lease_s)
        now_compiled_for = caches.identities(tx)
        by_path = _names_by_path(models.every(tx))
    newest = _newest_by_path(entries)
    return [
        Judged(
            entry,
            by_path.get(entry.model_path, ()),
            _why_stale(entry, now_compiled_for, newest, by_path),
        )
        for entry in entries
    ]


def prune(database: Database, settings: Settings, wish: Wish, *, dry_run: bool) -> list[Judged]:
    """Mark what is to go; returns it. Nothing in use or being written is among it.

    Raises InvalidRequest where nothing is wished for.
    """
    if wish.empty:
        raise InvalidRequest("say what to remove: max_bytes, older_than_s, stale")
    chosen = chosen_to_go(judged(database, settings), wish)
    if not dry_run:
        with database.unit_of_work() as tx:
            caches.doom(tx, [found.entry.key for found in chosen])
    return chosen


def keep_budget(database: Database, settings: Settings) -> int:
    """Mark what was not used for longest where a directory is over its size; returns how many."""
    if settings.cache_max_bytes == 0:
        return 0
    with database.unit_of_work() as tx:
        if caches.total_bytes(tx) <= settings.cache_max_bytes:
            return 0
    return len(prune(database, settings, Wish(max_bytes=settings.cache_max_bytes), dry_run=False))


def chosen_to_go(found: Sequence[Judged], wish: Wish) -> list[Judged]:
    """Which entries a wish is for, the first to go first: of no use, then longest unused."""
    free = sorted(
        (j for j in found if not j.entry.busy),
        key=lambda j: (j.stale is None, -j.entry.age_s),
    )
    chosen = [
        j
        for j in free
        if (wish.stale and j.stale is not None)
        or (wish.older_than_s is not None and j.entry.age_s > wish.older_than_s)
    ]
    if wish.max_bytes is None:
        return chosen
    over = _bytes_by_root(found, but=chosen)
    for j in free:
        root = j.entry.key.root_id
        if over[root] > wish.max_bytes and j not in chosen and j.entry.bytes > 0:
            chosen.append(j)
            over[root] -= j.entry.bytes
    return chosen


def remove_marked(database: Database, settings: Settings) -> int:
    """Remove what is marked in this host's directory, and take in what lies there unknown; returns
    how many were removed. Does nothing where there is no directory.
    """
    try:
        if not settings.cache_root.is_dir():
            return 0
        directory = CacheDirectory.open(settings.cache_root, make=False)
        _reconcile(database, directory)
        with database.unit_of_work() as tx:
            marked = caches.doomed(tx, directory.root_id)
            owners = [load_owner(device) for device in caches.live_devices(tx, settings.lease_s)]
        directory.end_loads_of_others(owners, _ABANDONED_S)
        return sum(_remove(database, settings, directory, key) for key in marked)
    except OSError as error:
        log.warning("cache_not_swept", reason=str(error))
        return 0


def _remove(
    database: Database, settings: Settings, directory: CacheDirectory, key: CacheKey
) -> bool:
    holder = f"{socket.gethostname()}/removal"
    with database.unit_of_work() as tx:
        token = caches.lease(tx, key, holder, CacheDeed.REMOVE, settings.lease_s)
    if token is None:
        return False  # in use again, or being written: another time
    try:
        with database.unit_of_work() as tx:
            caches.hold(tx, token)
            directory.remove(key.name)
            caches.drop(tx, token)
    except LostLease:
        return False
    except OSError as error:
        # It keeps no other from being removed.
        log.warning("cache_not_swept", cache=key.name, reason=str(error))
        with database.unit_of_work() as tx:
            caches.release(tx, token)
        return False
    log.info("cache_removed", cache=key.name)
    return True


def _reconcile(database: Database, directory: CacheDirectory) -> None:
    """What lies there and is not known is taken in, what is known and gone is to be forgotten."""
    with database.unit_of_work() as tx:
        known = caches.sizes(tx, directory.root_id)
    here = directory.names()
    gone = [name for name, size in known.items() if size and name not in here]
    if gone:
        with database.unit_of_work() as tx:
            caches.doom(tx, [CacheKey(directory.root_id, name) for name in gone])
    for name in here:
        if name in known:
            continue
        try:
            note = directory.read(name)
            if note is None:
                continue
            msgspec.convert(note.identity, CompileIdentity)
        except (ValueError, msgspec.ValidationError) as error:
            log.warning("cache_not_swept", cache=name, reason=str(error))
            continue
        size, n_files = directory.size(name)
        state = CacheState.USABLE if note.rejected is None else CacheState.REJECTED
        reason = note.rejected
        if "/" in name:
            state, reason = CacheState.QUARANTINED, "it was damaged; the record of how is lost"
        with database.unit_of_work() as tx:
            caches.adopt(
                tx,
                CacheKey(directory.root_id, name),
                root_path=str(directory.path),
                host=socket.gethostname(),
                namespace=note.namespace,
                identity=note.identity,
                model_path=note.model_path,
                state=state,
                reason=reason,
                size=size,
                n_files=n_files,
            )


def _why_stale(
    entry: CacheEntry,
    now_compiled_for: Mapping[str, Mapping[str, Any]],
    newest: Mapping[str, CacheEntry],
    by_path: Mapping[str, tuple[str, ...]],
) -> str | None:
    if entry.state is CacheState.QUARANTINED:
        return f"quarantined: {entry.reason}"
    if entry.model_path not in by_path:
        return "no registered model lies where its model lay"
    last = newest[entry.model_path]
    if last.identity["model_hash"] != entry.identity["model_hash"]:
        return "the model has other content now"
    now = None if entry.used_by is None else now_compiled_for.get(entry.used_by)
    return None if now is None else _outdated(entry.identity, now)


def _outdated(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What has changed on the device that used the entry last."""
    for library, version in then["libraries"].items():
        at_present = now["libraries"].get(library)
        if at_present != version:
            return f"made with {library} {version}, the device has {at_present} now"
    if then["device"] != now["device"]:
        return None  # the device's worker runs something else, over several devices, say
    for before, after in zip(then["devices"], now["devices"], strict=False):
        if (before["name"], before["architecture"]) != (after["name"], after["architecture"]):
            return f"made for {before['name']}, the device is {after['name']} now"
        if before["driver"] != after["driver"]:
            return f"made with driver {before['driver']}, the device has {after['driver']} now"
    return None


def _newest_by_path(entries: Iterable[CacheEntry]) -> dict[str, CacheEntry]:
    newest: dict[str, CacheEntry] = {}
    for entry in entries:
        if entry.state is not CacheState.QUARANTINED:
            newest.setdefault(entry.model_path, entry)
    return newest


def _names_by_path(registered: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for model in registered:
        path = model.spec.get("path")
        if isinstance(path, str):
            found.setdefault(path, []).append(model.name)
    return {path: tuple(sorted(names)) for path, names in found.items()}


def _bytes_by_root(found: Sequence[Judged], *, but: Sequence[Judged]) -> dict[str, int]:
    sums: dict[str, int] = {j.entry.key.root_id: 0 for j in found}
    gone = {j.entry.key for j in but}
    for j in found:
        if j.entry.key not in gone:
            sums[j.entry.key.root_id] += j.entry.bytes
    return sums
