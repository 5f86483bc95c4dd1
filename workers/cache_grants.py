"""How a load may use the compile cache: with a place of its own, or not at all.

Who compiles what is missing holds the entry's lease; the others wait for that one, or go without
the cache. Nothing that goes wrong here breaks a load: it runs uncached and says so.
"""

import threading
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import structlog

from batchgen.domain.caches import CacheKey
from batchgen.domain.errors import Unavailable
from batchgen.domain.ids import DeviceId, LeaseToken
from batchgen.engines.compile_identity import CompileIdentity
from batchgen.engines.spec import OpenVinoSpec
from batchgen.storage import caches
from batchgen.storage.cache_directory import CacheDirectory, EntryNote, load_owner
from workers.cache_leases import CacheLeases, Tick
from workers.context import Context

log = structlog.get_logger(__name__)

_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Uncached:
    """The load goes without; `note` says why, None where nobody asked for a cache."""

    spec: OpenVinoSpec
    note: str | None


@dataclass(frozen=True, slots=True)
class Placed:
    """The load reads and writes in `own`, its directory.

    `entry` is what lies in the entry already. With a `token` the load may add to it. `damage` is
    what is wrong with the entry: it is set aside once an engine has loaded without it.
    """

    spec: OpenVinoSpec
    identity: CompileIdentity
    directory: CacheDirectory
    own: Path
    entry: EntryNote | None
    token: LeaseToken | None
    note: str | None = None
    damage: str | None = None

    @property
    def warm(self) -> bool:
        """Whether the load should find its compiled model."""
        return self.entry is not None and self.identity.variant in self.entry.variants

    @property
    def key(self) -> CacheKey:
        return CacheKey(self.directory.root_id, self.identity.namespace)


Grant = Uncached | Placed


class CacheGrants:
    """Grants to one device's worker: at most one is out at a time."""

    def __init__(self, context: Context, device_id: DeviceId, leases: CacheLeases) -> None:
        self._context = context
        self._leases = leases
        self._owner = load_owner(device_id)

    def ask(
        self, directory: CacheDirectory, spec: OpenVinoSpec, identity: CompileIdentity, tick: Tick
    ) -> Grant:
        """A grant for a load of this spec; waits while another compiles the same."""
        directory.end_loads(self._owner)
        try:
            return self._ask(directory, spec, identity, tick)
        except Unavailable as error:
            # Nobody could be kept from writing, or from removing what is read, at the same time.
            return self.refuse(spec, f"not used: {error}")
        except OSError as error:
            return self.refuse(spec, f"not used: {in_words(error)}")

    def refuse(self, spec: OpenVinoSpec, note: str | None) -> Uncached:
        """The grant of a load that goes uncached."""
        self._leases.leave()
        return Uncached(msgspec.structs.replace(spec, cache=False, cache_dir=None), note)

    def without_entry(self, failed: Placed, reason: str) -> Grant:
        """After a load that was to be warm and failed: another, which does not read the entry."""
        failed.directory.end_load(failed.own)
        try:
            token = failed.token or self._leases.lease(failed.key)
            if token is None:
                note = f"not used: the engine failed to load with it: {reason}"
                return self.refuse(failed.spec, note)
            own = failed.directory.begin_load(self._owner, failed.identity.namespace, None)
        except (Unavailable, OSError) as error:
            return self.refuse(failed.spec, f"not used: {in_words(error)}")
        spec = msgspec.structs.replace(failed.spec, cache_dir=str(own))
        return replace(failed, spec=spec, own=own, entry=None, token=token, damage=reason)

    def take_back(self, grant: Grant) -> None:
        """The load failed, or its engine is gone."""
        if isinstance(grant, Placed):
            grant.directory.end_load(grant.own)
            self._leases.release(grant.token)
        self._leases.leave()

    def _ask(
        self, directory: CacheDirectory, spec: OpenVinoSpec, identity: CompileIdentity, tick: Tick
    ) -> Grant:
        clock, wait_s = self._context.clock, self._context.settings.cache_wait_s
        key = CacheKey(directory.root_id, identity.namespace)
        give_up = clock.monotonic() + wait_s
        pause = threading.Event()
        while True:
            if self._leases.enter(directory, spec, identity):
                entry, damage = look(directory, identity, tick)
                if entry is not None and entry.rejected is not None:
                    self._leases.note_identity(directory, identity)
                    return self.refuse(spec, f"not used: {entry.rejected}")
                if entry is not None and damage is None and identity.variant in entry.variants:
                    return self._place(directory, spec, identity, entry, None)
                token = self._leases.lease(key)
                if token is not None:
                    return self._as_writer(directory, spec, identity, token, tick)
            if clock.monotonic() >= give_up:
                writer = self._leases.writer_of(key)
                return self.refuse(spec, f"not used: {writer} was still at it after {wait_s:g} s")
            tick()
            pause.wait(_LOOK_S)

    def _as_writer(
        self,
        directory: CacheDirectory,
        spec: OpenVinoSpec,
        identity: CompileIdentity,
        token: LeaseToken,
        tick: Tick,
    ) -> Placed:
        """The last writer may have finished between the look and the lease: looks again."""
        try:
            entry, damage = look(directory, identity, self._leases.renewing(token, tick))
            if damage is not None:
                set_aside(self._leases, directory, identity.namespace, token, damage)
                placed = self._place(directory, spec, identity, None, token)
                return replace(placed, note=f"the entry was damaged and is set aside: {damage}")
            if entry is not None and identity.variant in entry.variants:
                self._leases.release(token)
                return self._place(directory, spec, identity, entry, None)
            return self._place(directory, spec, identity, entry, token)
        except BaseException:
            self._leases.release(token)
            raise

    def _place(
        self,
        directory: CacheDirectory,
        spec: OpenVinoSpec,
        identity: CompileIdentity,
        entry: EntryNote | None,
        token: LeaseToken | None,
    ) -> Placed:
        own = directory.begin_load(self._owner, identity.namespace, entry)
        placed = msgspec.structs.replace(spec, cache_dir=str(own))
        return Placed(placed, identity, directory, own, entry, token)


def look(
    directory: CacheDirectory, identity: CompileIdentity, tick: Tick
) -> tuple[EntryNote | None, str | None]:
    """What lies in an identity's entry, and what is wrong with it."""
    try:
        entry = directory.read(identity.namespace)
    except ValueError as error:
        return None, str(error)
    if entry is None or identity.variant not in entry.variants:
        return entry, None
    return entry, directory.damage(identity.namespace, entry, tick)


def set_aside(
    leases: CacheLeases, directory: CacheDirectory, name: str, token: LeaseToken, reason: str
) -> None:
    """Move a damaged entry into quarantine. Raises LostLease."""
    with leases.tx() as tx:
        caches.hold(tx, token)
        size, n_files = directory.size(name)
        aside = directory.set_aside(name)
        caches.set_aside(tx, token, aside, reason=reason, size=size, n_files=n_files)
    log.warning("cache_set_aside", cache=aside, reason=reason)


def in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
