"""The engine that stays loaded between jobs, and the record of its session."""

import contextlib
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from batchgen.domain.clock import boot_id
from batchgen.domain.errors import EngineError, Unavailable
from batchgen.domain.ids import DeviceId, SessionId, new_session_id
from batchgen.engines.client import HOST_COMMAND, EngineClient
from batchgen.engines.protocol import Applied, EngineStats
from batchgen.engines.spec import EngineSpec, OpenVinoEmbeddingSpec, encode_spec
from batchgen.settings import Settings
from batchgen.storage import devices
from workers.cached_load import CachedLoad
from workers.context import Context
from workers.embedding import EmbeddingPreparer
from workers.prepare import GenerationPreparer, Preparer

# An engine that fails to load, or on whatever it runs, is tried this often before its lines end
# as errors.
LOAD_ATTEMPTS = 2
# After that long a failed engine gets another chance (a full disk was cleared, a driver restarted).
_FORGIVE_S = 600.0


@dataclass(slots=True)
class _Failure:
    times: int
    message: str
    at: float


class Resident:
    """At most one loaded engine, for one device. `fingerprint` is that of the jobs it can serve."""

    def __init__(self, context: Context, device_id: DeviceId, device: str) -> None:
        self._context = context
        self._device_id = device_id
        self._device = device
        self._loading = CachedLoad(context, device_id, self._start_host)
        self._spec: EngineSpec | None = None
        self._failures: dict[str, _Failure] = {}
        self.client: EngineClient | None = None
        self.applied: Applied | None = None
        self.preparer: Preparer | None = None
        self.fingerprint: str | None = None
        self.session_id: SessionId | None = None
        self.last_stats: EngineStats | None = None
        self.submitted = 0
        self._ids = count(1)

    def next_id(self) -> int:
        """A request's id. None is given twice: an engine that outlives what was withdrawn may still
        answer it.
        """
        return next(self._ids)

    @property
    def loaded(self) -> bool:
        return self.applied is not None

    @property
    def max_requests(self) -> int | None:
        """After so many requests the host is to be replaced; None: never."""
        return None if self._spec is None else self._spec.max_requests_per_process

    def unfit(self) -> list[str]:
        """The fingerprints of the engines that are not tried any more for now."""
        return [fingerprint for fingerprint in list(self._failures) if self.failure(fingerprint)]

    def failure(self, fingerprint: str) -> str | None:
        """Why this engine is not tried any more for now; None where it may be loaded."""
        known = self._failures.get(fingerprint)
        if known is None or known.times < LOAD_ATTEMPTS:
            return None
        if self._context.clock.monotonic() - known.at > _FORGIVE_S:
            del self._failures[fingerprint]
            return None
        return known.message

    def load(self, spec: EngineSpec, fingerprint: str, while_waiting: Callable[[], None]) -> None:
        """Load the engine in a fresh host. Raises EngineError; what `while_waiting` raises passes
        on.
        """
        self.unload("replaced")
        settings = self._context.settings
        bound = spec
        if spec.device is None:
            bound = msgspec.structs.replace(spec, device=self._device)
        with contextlib.ExitStack() as undo:
            try:
                client, applied = self._loading.load(bound, while_waiting)
                undo.callback(self._loading.unloaded)
                undo.callback(client.close)
                session_id = new_session_id()
                preparer = _preparer(bound, applied, settings, session_id)
                self._open_session(session_id, bound, fingerprint, applied)
            except EngineError as error:
                self.note_failure(fingerprint, str(error))
                raise
            undo.pop_all()
        self.client, self.applied, self.preparer = client, applied, preparer
        self.fingerprint, self._spec, self.session_id = fingerprint, spec, session_id
        self.submitted = 0

    def reload(self, reason: str, while_waiting: Callable[[], None]) -> None:
        """The same engine in a fresh host, after a crash or to free what it has piled up."""
        spec, fingerprint = self._spec, self.fingerprint
        if spec is None or fingerprint is None:
            raise EngineError("there is no engine to load again")
        self.unload(reason)
        self.load(spec, fingerprint, while_waiting)

    def unload(self, reason: str) -> None:
        """End the host and close its session's record; fine to call with nothing loaded."""
        client, session_id, stats = self.client, self.session_id, self.last_stats
        # Forgotten first: whatever goes wrong below, nobody takes a closed engine for a loaded one.
        self.client = self.applied = self.preparer = None
        self.fingerprint = self.session_id = self._spec = self.last_stats = None
        if client is not None:
            client.close()
            self._loading.unloaded()
        if session_id is not None:
            counted = None if stats is None else msgspec.to_builtins(stats)
            # Where it cannot be noted, the next worker of this device closes what is left open.
            with contextlib.suppress(Unavailable), self._context.database.unit_of_work() as tx:
                devices.close_session(tx, session_id, reason, counted)

    def _start_host(self) -> EngineClient:
        settings = self._context.settings
        settings.log_dir.mkdir(parents=True, exist_ok=True)
        return EngineClient(
            log_path=settings.log_dir / f"engine-{_file_name(self._device_id)}.log",
            command=shlex.split(settings.host_command) or HOST_COMMAND,
            step_timeout_s=settings.step_timeout_s,
        )

    def _open_session(
        self, session_id: SessionId, bound: EngineSpec, fingerprint: str, applied: Applied
    ) -> None:
        with self._context.database.unit_of_work() as tx:
            devices.open_session(
                tx,
                session_id=session_id,
                device_id=self._device_id,
                fingerprint=fingerprint,
                spec=encode_spec(bound),
                applied=msgspec.to_builtins(applied),
                load_s=applied.load_s,
                boot_id=boot_id(),
                monotonic_ns=time.monotonic_ns(),
            )

    def note_failure(self, fingerprint: str, message: str) -> None:
        """This engine cannot be loaded, or is of no use once it is."""
        earlier = self._failures.get(fingerprint)
        times = 1 if earlier is None else earlier.times + 1
        self._failures[fingerprint] = _Failure(times, message, self._context.clock.monotonic())

    def ran_well(self) -> None:
        """The loaded engine has answered a request: only that clears it of earlier failures."""
        if self._failures and self.fingerprint is not None:
            self._failures.pop(self.fingerprint, None)


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in Path(name).as_posix())


def _preparer(
    bound: EngineSpec, applied: Applied, settings: Settings, session_id: SessionId
) -> Preparer:
    if isinstance(bound, OpenVinoEmbeddingSpec):
        return EmbeddingPreparer(bound, applied, session_id=session_id)
    return GenerationPreparer(
        bound, applied, max_output_tokens=settings.max_output_tokens, session_id=session_id
    )
