"""Load an engine with the compile cache around it."""

import contextlib
import socket
from collections.abc import Callable

from batchgen.domain.errors import EngineError
from batchgen.domain.ids import DeviceId
from batchgen.engines.client import EngineClient
from batchgen.engines.protocol import Applied
from batchgen.engines.spec import EngineSpec, OpenVinoSpec
from batchgen.storage.cache_directory import CacheDirectory
from workers.cache_grants import CacheGrants, Grant, Placed, in_words
from workers.cache_keeping import settle
from workers.cache_leases import CacheLeases, Tick
from workers.context import Context


class CachedLoad:
    """Loads one device's engines, one after the other. `start` starts a fresh engine host."""

    def __init__(
        self, context: Context, device_id: DeviceId, start: Callable[[], EngineClient]
    ) -> None:
        self._settings = context.settings
        self._start = start
        self._leases = CacheLeases(context, device_id, socket.gethostname())
        self._grants = CacheGrants(context, device_id, self._leases)
        self._grant: Grant | None = None

    def load(self, spec: EngineSpec, tick: Tick) -> tuple[EngineClient, Applied]:
        """A host with the engine loaded, and what it holds. Raises EngineError, and what `tick`
        raises.
        """
        if not isinstance(spec, OpenVinoSpec) or not spec.cache:
            client = self._start()
            return client, self._loaded(client, spec, tick)
        client = self._start()
        try:
            grant = self._ask(client, spec, tick)
        except BaseException:
            client.close()
            self._leases.leave()
            raise
        try:
            return client, self._with(grant, client, tick)
        except EngineError as error:
            if not isinstance(grant, Placed) or not grant.warm:
                self._grants.take_back(grant)
                raise
            without = self._grants.without_entry(grant, str(error))
        except BaseException:
            self._grants.take_back(grant)
            raise
        # The entry is to blame if, and only if, the engine loads without it.
        try:
            client = self._start()
            return client, self._with(without, client, tick)
        except BaseException:
            self._grants.take_back(without)
            raise

    def unloaded(self) -> None:
        """The engine is gone: its entry is not in use any more."""
        if self._grant is not None:
            grant, self._grant = self._grant, None
            self._grants.take_back(grant)

    def _ask(self, client: EngineClient, spec: OpenVinoSpec, tick: Tick) -> Grant:
        settings = self._settings
        try:
            directory = CacheDirectory.open(settings.cache_root, make=settings.cache_dir is None)
        except OSError as error:
            return self._grants.refuse(spec, f"not used: {in_words(error)}")
        identity = client.identify(spec, directory.hashes, settings.load_timeout_s, tick)
        if identity is None:
            return self._grants.refuse(spec, "not used: the engine compiles nothing")
        return self._grants.ask(directory, spec, identity, tick)

    def _with(self, grant: Grant, client: EngineClient, tick: Tick) -> Applied:
        token = grant.token if isinstance(grant, Placed) else None
        applied = self._loaded(client, grant.spec, self._leases.renewing(token, tick))
        with contextlib.ExitStack() as undo:
            undo.callback(client.close)
            applied = settle(self._leases, grant, applied, tick)
            undo.pop_all()
        self._grant = grant
        return applied

    def _loaded(self, client: EngineClient, spec: EngineSpec, tick: Tick) -> Applied:
        try:
            return client.load(spec, self._settings.load_timeout_s, tick)
        except BaseException:
            client.close()
            raise
