"""The supervisor's hold on an engine host: start it, talk to it, watch it, learn how it died.

    client = EngineClient(log_path=path, step_timeout_s=120.0)   # starts the process
    applied = client.load(spec, timeout_s=900.0, while_waiting=heartbeat)
    client.submit([EngineRequest(...)])
    for frame in client.poll(0.1):          # Outputs | Cancelled | Progress
        ...
    client.close()

`poll` raises HostDied or HostHung, after every frame that the host wrote before has been returned;
`breadcrumbs()` then tells what it was working on. A client is for one host's life: after either
error, `close()` it and make another. All methods are for one thread; none of them waits for the
host's attention without a limit.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from batchgen.domain.errors import HostDied, HostHung, LoadFailed
from batchgen.engines.breadcrumbs import Breadcrumbs, Trail
from batchgen.engines.compile_identity import CompileIdentity
from batchgen.engines.pipe import FramePipe, PipeClosed
from batchgen.engines.protocol import (
    Applied,
    AskStats,
    Busy,
    Cancel,
    Cancelled,
    Close,
    EngineRequest,
    Fatal,
    FromHost,
    Identified,
    Identify,
    Load,
    Loaded,
    LoadRefused,
    Outputs,
    Progress,
    Submit,
    ToHost,
)
from batchgen.engines.spawner import spawner
from batchgen.engines.spec import EngineSpec

HOST_COMMAND = (sys.executable, "-m", "batchgen.engines.host")
CLOSE_S = 5.0
_WAIT_S = 0.5

Event = Outputs | Cancelled | Progress


class EngineClient:
    """One engine host, started by the constructor.

    `command` starts a host (of another environment, if need be); `log_path` gets its stdout and
    stderr, appended. `step_timeout_s` is how long work in flight may make no progress. `env` None
    passes this process's environment on.
    """

    def __init__(
        self,
        *,
        log_path: Path,
        command: Sequence[str] = HOST_COMMAND,
        step_timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
    ):
        self._log_path = log_path
        self._step_timeout_s = step_timeout_s
        self._in_flight: set[int] = set()
        self._fault: HostDied | HostHung | None = None
        self._loaded = False
        # How long the host may be silent: for a step, or for a load where it said so.
        self._patience_s = self._load_timeout_s = step_timeout_s
        self._seen_step = 0
        self._last_sign = self._last_poll = time.monotonic()
        self._trail = Trail()
        ours, theirs = socket.socketpair()
        self._pipe: FramePipe[FromHost] = FramePipe(ours, FromHost)
        try:
            with theirs, log_path.open("ab") as log:
                self._process = spawner(os.getpid()).start(
                    [
                        *command,
                        f"--pipe-fd={theirs.fileno()}",
                        f"--trail-fd={self._trail.fd}",
                        f"--parent={os.getpid()}",
                    ],
                    fds=(theirs.fileno(), self._trail.fd),
                    log_fd=log.fileno(),
                    env=env,
                )
        except OSError as error:
            self._pipe.close()
            self._trail.close()
            raise HostDied(f"the engine process cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._fault is None and self._process.poll() is None

    @property
    def in_flight(self) -> int:
        """How many requests were submitted and have neither ended nor been dropped."""
        return len(self._in_flight)

    def fileno(self) -> int:
        """For select: readable when `poll` has something to say."""
        return self._pipe.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether frames wait for room in the pipe: then select for writing, too."""
        return self._pipe.wants_write

    def load(
        self,
        spec: EngineSpec,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> Applied:
        """Load an engine; returns what it really holds.

        `while_waiting` is called twice a second (leases need renewing during a long load); what it
        raises is passed on, and the host is of no use any more. Raises LoadFailed with the engine's
        own message, HostDied, or HostHung after `timeout_s`.
        """
        self._load_timeout_s = max(timeout_s, self._step_timeout_s)
        self._send(Load(spec=spec))
        answer = self._answer(timeout_s, while_waiting, "the engine was not loaded")
        if not isinstance(answer, Loaded):
            raise LoadFailed(f"the engine host answered {type(answer).__name__} to Load")
        self._loaded = True
        self._sign_of_life()
        return answer.applied

    def identify(
        self,
        spec: EngineSpec,
        hashes: Path | None,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> CompileIdentity | None:
        """What a compiled model of this spec depends on in the host; to be asked before `load`.

        `hashes` is a directory in which the host may note what files contain. `while_waiting` and
        what is raised: as `load`.
        """
        self._send(Identify(spec=spec, hashes=None if hashes is None else str(hashes)))
        answer = self._answer(timeout_s, while_waiting, "the model was not read")
        if not isinstance(answer, Identified):
            raise LoadFailed(f"the engine host answered {type(answer).__name__} to Identify")
        return answer.identity

    def _answer(
        self, timeout_s: float, while_waiting: Callable[[], None] | None, in_vain: str
    ) -> Loaded | Identified:
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            for frame in self._receive(min(left, _WAIT_S)):
                match frame:
                    case Loaded() | Identified():
                        return frame
                    case LoadRefused(message=message) | Fatal(message=message):
                        raise LoadFailed(message)
            if self._fault is not None:
                raise self._fault
            if while_waiting is not None:
                while_waiting()
        self._fault = HostHung(f"{in_vain} within {timeout_s:g} s")
        self.kill()
        raise self._fault

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Hand requests over. A host that has died meanwhile shows in the next `poll`."""
        if requests:
            if not self._in_flight:
                self._sign_of_life()
            self._in_flight.update(request.id for request in requests)
            self._send(Submit(requests=list(requests)))

    def cancel(self, ids: Iterable[int]) -> None:
        """Ask to drop these; the answer is a `Cancelled` with those that had not ended before."""
        self._send(Cancel(ids=list(ids)))

    def ask_stats(self) -> None:
        """Ask for a `Progress` now (while it steps, a host sends some unasked)."""
        self._send(AskStats())

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """What the host has to say, waiting at most so long for the first of it (maybe shorter).

        Raises HostDied (its exit code inside) or HostHung (then it is killed already) once all that
        the host wrote before has been returned.
        """
        events: list[Event] = []
        busy = False
        now = time.monotonic()
        if now - self._last_poll > self._step_timeout_s / 2:
            self._sign_of_life()  # This process was stopped or busy, and saw nothing: no judgement.
        if self._fault is None:
            if self._in_flight:
                judged_at = self._last_sign + self._patience_s
                timeout_s = min(timeout_s, max(0.001, judged_at - now))
            for frame in self._receive(timeout_s):
                busy = isinstance(frame, Busy)
                match frame:
                    case Outputs(finished=finished):
                        self._in_flight.difference_update(f.id for f in finished)
                        events.append(frame)
                    case Cancelled(ids=ids):
                        self._in_flight.difference_update(ids)
                        events.append(frame)
                    case Progress():
                        events.append(frame)
                    case Fatal(message=message):
                        self._died(message)
            self._watch(heard=bool(events))
            if busy:
                self._be_patient()
        self._last_poll = time.monotonic()
        if self._fault is not None and not events:
            raise self._fault
        return events

    def steps(self) -> int:
        """How many steps the host has begun; readable at any time."""
        return self._trail.step()

    def breadcrumbs(self) -> Breadcrumbs:
        """What the host is, or was, working on; readable after its death, until `close`."""
        return self._trail.read()

    def kill(self) -> None:
        """End the host at once."""
        self._process.kill()
        # One that a driver holds in the kernel ends when the driver lets it go.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Ask the host to end, kill it when it does not, free everything. Closing twice is fine."""
        if self._pipe.fileno() < 0:
            return
        if self._loaded and self.alive:
            with contextlib.suppress(PipeClosed, subprocess.TimeoutExpired):
                self._pipe.send(Close())
                self._pipe.drain(timeout_s)
                self._process.wait(timeout_s)
        self.kill()
        self._pipe.close()
        self._trail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, frame: ToHost) -> None:
        if self._fault is None:
            # A host that is gone: what it wrote before it died is read first, by `poll`.
            with contextlib.suppress(PipeClosed):
                self._pipe.send(frame)

    def _receive(self, timeout_s: float) -> list[FromHost]:
        try:
            self._pipe.wait(timeout_s)
            return self._pipe.receive()
        except PipeClosed:
            self._died("")
            return []

    def _died(self, message: str) -> None:
        if self._fault is None:
            try:
                self._process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                self.kill()
            code = self._process.returncode
            how = f"was ended by signal {-code}" if (code or 0) < 0 else f"ended with code {code}"
            text = message or f"the engine process {how}; its log: {self._log_path}"
            self._fault = HostDied(text, exit_code=code)

    def _watch(self, *, heard: bool) -> None:
        step = self._trail.step()
        if heard or step != self._seen_step or not self._in_flight:
            self._seen_step = step
            self._patience_s = self._step_timeout_s
            self._sign_of_life()
        elif time.monotonic() - self._last_sign > self._patience_s and self._fault is None:
            self._fault = HostHung(
                f"the engine made no progress for {self._patience_s:g} s and was ended"
            )
            self.kill()

    def _be_patient(self) -> None:
        # The step that takes so long has begun: only the next one will show that it is over.
        self._seen_step = self._trail.step()
        self._patience_s = self._load_timeout_s
        self._sign_of_life()

    def _sign_of_life(self) -> None:
        self._last_sign = time.monotonic()
