"""The whole service on one machine: servers, API and workers, started, watched and stopped."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import FrameType
from typing import Any

from batchgen.domain.errors import StackError
from batchgen.local import listening, state
from batchgen.local.child import ChildProcess
from batchgen.local.children import ChildrenFor, children_of, environment_of
from batchgen.local.credentials import (
    Credentials,
    credentials_path,
    read_credentials,
    write_credentials,
)
from batchgen.local.data_directory import make_directories
from batchgen.local.devices import CPU, Devices, FoundDevice, discover_devices
from batchgen.local.group import ChildGroup
from batchgen.local.loan import forget_orphan
from batchgen.local.lock import DirectoryLock
from batchgen.local.phases import Phases
from batchgen.local.servers import Servers
from batchgen.local.state import PartState, StackState
from batchgen.local.supervise import Part, Report, Supervisor
from batchgen.settings import Settings

_TICK_S = 0.1


class StoppedEarly(StackError):
    """The stack was asked to stop before it was ready."""


class Stack:
    """One stack on one data directory. `run` blocks until `request_stop` or a failed start.

    Outside servers are used where the settings name them. A port that was asked for must be free;
    the default one is replaced by a free one where it is taken. `device_names` None means every
    device that is found. `report` gets lines fit for a log; a new API key, which is not, goes to
    `show_key`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        host: str | None = None,
        port: int | None = None,
        device_names: Sequence[str] | None = None,
        report: Report = print,
        show_key: Report | None = None,
        children_for: ChildrenFor = children_of,
        ready_timeout_s: float = 120.0,
    ):
        self._settings = settings
        self._host = settings.host if host is None else host
        self._port = settings.port if port is None else port
        self._insist_on_port = port is not None or "port" in settings.model_fields_set
        self._device_names = device_names
        self._report = report
        self._show_key = show_key
        self._children_for = children_for
        self._ready_timeout_s = ready_timeout_s
        self._stop = threading.Event()
        self._hurry = False
        self._phases = Phases()
        self._state: StackState

    def request_stop(self) -> None:
        """Ask for a clean stop; asked a second time, for one that waits for nobody."""
        self._hurry = self._stop.is_set()
        self._stop.set()

    def run(self) -> None:
        """Start everything, keep it alive until asked to stop, stop everything.

        Raises StackError where the directory or the port is taken, a server or a child does not
        come up, or (StoppedEarly) the stop came before all was ready.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(self._directory())
            bound = cleanup.enter_context(
                listening.listen(self._host, self._port, insist=self._insist_on_port)
            )
            executor = ThreadPoolExecutor(max_workers=6, thread_name_prefix="batchgen-up")
            servers = Servers(self._settings, self._phases)
            # Twice: the first stop ends a start that still waits, the second one what has
            # nevertheless come up before the executor was empty.
            cleanup.callback(servers.stop)
            cleanup.callback(executor.shutdown)
            cleanup.callback(servers.stop)
            found = self._start_servers(servers, executor, listening.url_of(bound))
            group = ChildGroup(
                self._make_children(found, bound),
                report=self._report,
                await_all=self._await_all,
                in_a_hurry=lambda: self._hurry,
            )
            cleanup.callback(group.end)
            parts: list[Part] = [*servers.parts(), *group.children]
            supervisor = Supervisor(parts, executor=executor, report=self._report)
            with self._phases.measure("children"):
                group.start()
                self._write_state(parts, supervisor, ready=False)
                group.await_ready(supervisor, executor, self._ready_timeout_s)
            self._write_state(parts, supervisor, ready=True)
            self._report(
                f"ready at {self._state.api_url} after {time.monotonic() - began:.1f} s; "
                "Ctrl-C stops it"
            )
            while not self._stop.wait(_TICK_S):
                if supervisor.tick():
                    try:
                        self._write_state(parts, supervisor, ready=True)
                    except OSError as error:  # a full disk is no reason to stop serving
                        self._report(f"cannot write down the state of the stack: {error}")
            self._report("stopping")

    @contextlib.contextmanager
    def _directory(self) -> Iterator[None]:
        """Hold the data directory: one stack at a time."""
        settings = self._settings
        make_directories(settings)
        lock = DirectoryLock(state.lock_path(settings))
        lock.acquire(
            what=f"the data directory {settings.data_dir}",
            mend=f"`batchgen down --data-dir {settings.data_dir}` stops that stack; or choose "
            "another --data-dir",
        )
        forget_orphan(settings)
        try:
            yield
        finally:
            state.clear_state(settings)
            lock.release()

    def _start_servers(
        self, servers: Servers, executor: ThreadPoolExecutor, api_url: str
    ) -> Devices:
        """Servers and devices at the same time; returns the devices to serve."""
        settings = self._settings
        self._report(f"starting on {settings.data_dir}")
        database, broker = servers.start(executor)
        devices = executor.submit(self._find_devices)
        self._await_all([database, broker, devices])
        self._state = StackState(
            pid=os.getpid(),
            api_url=api_url,
            database_url=database.result().url,
            broker_url=broker.result().url,
            store_url=settings.store,
            warnings=(*broker.result().warnings, *devices.result().unusable),
        )
        self._keep_credentials(database.result().new_key)
        for warning in self._state.warnings:
            self._report(warning)
        return devices.result()

    def _await_all(self, futures: "Sequence[Future[Any]]") -> None:
        """Wait for all, raise the first failure at once, give up when asked to stop."""
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_TICK_S)
            for future in done:
                future.result()
            if self._stop.is_set():
                raise StoppedEarly("stopped before it was ready")

    def _find_devices(self) -> Devices:
        if self._device_names is None:
            with self._phases.measure("devices"):
                return discover_devices()
        named = tuple(FoundDevice(name, "asked for") for name in self._device_names)
        return Devices(named or (CPU,))

    def _keep_credentials(self, new_key: str | None) -> None:
        """Leave the URL and the key where the command line of this machine looks for them."""
        if new_key is not None:
            write_credentials(self._settings, Credentials(self._state.api_url, new_key))
            self._report(f"an API key is in {credentials_path(self._settings)}")
            if self._show_key is not None:
                self._show_key(new_key)
            return
        known = read_credentials(self._settings)
        if known is None:
            self._report("no API key is kept on this machine: `batchgen key create` makes one")
        elif known.api_url != self._state.api_url:
            write_credentials(self._settings, Credentials(self._state.api_url, known.api_key))

    def _make_children(self, devices: Devices, bound: socket.socket) -> list[ChildProcess]:
        specs = self._children_for(
            self._settings, devices, api_fd=bound.fileno(), api_url=self._state.api_url
        )
        environment = environment_of(self._settings, self._state)
        return [
            ChildProcess(
                spec,
                cwd=self._settings.data_dir,
                env=environment,
                log_path=self._settings.log_dir / f"{spec.name}.log",
                run_dir=self._settings.run_dir,
            )
            for spec in specs
        ]

    def _write_state(self, parts: Sequence[Part], supervisor: Supervisor, *, ready: bool) -> None:
        restarts = supervisor.restarts()
        state.write_state(
            self._settings,
            replace(
                self._state,
                ready=ready,
                phases=dict(self._phases.seconds),
                parts=tuple(
                    PartState(
                        name=part.name,
                        pid=part.pid,
                        alive=part.is_alive(),
                        restarts=restarts[part.name],
                        log_path=str(part.log_path),
                    )
                    for part in parts
                ),
            ),
        )


def up(
    settings: Settings,
    *,
    host: str | None = None,
    port: int | None = None,
    device_names: Sequence[str] | None = None,
    report: Report = print,
    show_key: Report | None = None,
) -> None:
    """Run the stack in this process until Ctrl-C, SIGTERM or SIGHUP; call it in the main thread.

    Raises StackError where it cannot be started.
    """
    stack = Stack(
        settings,
        host=host,
        port=port,
        device_names=device_names,
        report=report,
        show_key=show_key,
    )
    with stopped_by_signals(stack), contextlib.suppress(StoppedEarly):
        stack.run()


@contextlib.contextmanager
def stopped_by_signals(stack: Stack) -> Iterator[None]:
    """While inside, the signals that end a program ask the stack to stop."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stack.request_stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was started with nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
