"""The rights that a device's worker has on entries of the compile cache, in the database."""

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from batchgen.domain.caches import CacheDeed, CacheKey
from batchgen.domain.errors import LostLease, Unavailable
from batchgen.domain.ids import DeviceId, LeaseToken
from batchgen.engines.compile_identity import CompileIdentity
from batchgen.engines.spec import OpenVinoSpec
from batchgen.storage import caches
from batchgen.storage.cache_directory import CacheDirectory
from workers.context import Context

Tick = Callable[[], None]


class CacheLeases:
    """Uses and leases of one device. What asks raises Unavailable, what gives back never."""

    def __init__(self, context: Context, device_id: DeviceId, host: str) -> None:
        self._context = context
        self._device_id = device_id
        self._host = host
        self._next_renewal = 0.0

    def enter(
        self, directory: CacheDirectory, spec: OpenVinoSpec, identity: CompileIdentity
    ) -> bool:
        """Use the entry of this identity; False while somebody removes it."""
        with self.tx() as tx:
            return caches.enter(
                tx,
                CacheKey(directory.root_id, identity.namespace),
                self._device_id,
                root_path=str(directory.path),
                host=self._host,
                namespace=identity.namespace,
                identity=msgspec.to_builtins(identity),
                model_path=spec.path,
            )

    def leave(self) -> None:
        """Use no entry any more."""
        with contextlib.suppress(Unavailable), self.tx() as tx:
            caches.leave(tx, self._device_id)

    def lease(self, key: CacheKey) -> LeaseToken | None:
        """The right to write the entry; None while another has it."""
        settings = self._context.settings
        self._next_renewal = self._context.clock.monotonic() + settings.heartbeat_s
        with self.tx() as tx:
            return caches.lease(tx, key, self._device_id, CacheDeed.COMPILE, settings.lease_s)

    def renewing(self, token: LeaseToken | None, tick: Tick) -> Tick:
        """`tick`, which renews the lease as well."""
        if token is None:
            return tick

        def beat() -> None:
            tick()
            now = self._context.clock.monotonic()
            if now >= self._next_renewal:
                self._next_renewal = now + self._context.settings.heartbeat_s
                # Without the lease nothing is kept of this load; it goes on all the same.
                with contextlib.suppress(Unavailable, LostLease), self.tx() as tx:
                    caches.renew(tx, token, self._context.settings.lease_s)

        return beat

    def release(self, token: LeaseToken | None) -> None:
        """Give it back. Where that cannot be done the lease ends by itself."""
        if token is not None:
            with contextlib.suppress(Unavailable), self.tx() as tx:
                caches.release(tx, token)

    def note_identity(self, directory: CacheDirectory, identity: CompileIdentity) -> None:
        """What the device is compiled for now, though it uses no entry."""
        with self.tx() as tx:
            plain = msgspec.to_builtins(identity)
            caches.note_identity(tx, self._device_id, directory.root_id, plain)

    def writer_of(self, key: CacheKey) -> str:
        with self.tx() as tx:
            return caches.writer_of(tx, key) or "another worker"

    def tx(self) -> contextlib.AbstractContextManager[Any]:
        return self._context.database.unit_of_work()
