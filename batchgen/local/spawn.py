"""Starts child processes that end when this process ends, however it ends."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from signal import Signals

from batchgen.domain.errors import StackError
from batchgen.local import armed
from batchgen.local.identity import Identity

Child = subprocess.Popen[bytes]


class _SpawningThread:
    """One thread that creates every child and lives as long as the process.

    The kernel sends the parent-death signal when the *thread* that created the child ends, so a
    child started from a thread of a pool would be ended with that thread.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Callable[[], Child], Future[Child]]]

    def run(self, start: Callable[[], Child]) -> Child:
        with self._lock:
            if self._pid != os.getpid():  # the first call, or the first one after a fork
                self._pid = os.getpid()
                self._work = queue.SimpleQueue()
                threading.Thread(
                    target=self._serve, args=(self._work,), name="batchgen-spawn", daemon=True
                ).start()
        future: Future[Child] = Future()
        self._work.put((start, future))
        return future.result()

    @staticmethod
    def _serve(work: "queue.SimpleQueue[tuple[Callable[[], Child], Future[Child]]]") -> None:
        while True:
            start, future = work.get()
            try:
                future.set_result(start())
            except BaseException as error:  # noqa: BLE001 (handed to the caller whole)
                future.set_exception(error)


_spawning = _SpawningThread()


def spawn(
    command: Sequence[str | Path],
    *,
    log_path: Path,
    death_signal: Signals,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    identity: Identity = Identity.SAME,
    clean_environment: bool = False,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start `command` in a session of its own, its output appended to the file `log_path`.

    The child gets `death_signal` when this process ends. `clean_environment` leaves out what
    leads the embedded servers astray (LD_*, PG*). Raises StackError where it cannot be started.
    """
    wrapper = [
        sys.executable,
        "-I",
        "-S",
        armed.__file__,
        str(os.getpid()),
        str(int(death_signal)),
        identity.value,
        "clean" if clean_environment else "keep",
    ]
    try:
        with log_path.open("ab") as log:
            return _spawning.run(
                lambda: subprocess.Popen(
                    [*wrapper, *map(str, command)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=None if env is None else dict(env),
                    start_new_session=True,  # a Ctrl-C is for the supervisor alone
                    pass_fds=tuple(pass_fds),
                )
            )
    except OSError as error:
        raise StackError(
            f"cannot start {Path(command[0]).name}: {error}; see that {cwd or Path.cwd()} and "
            f"{log_path.parent} exist and are writable"
        ) from error


def end(child: Child, steps: Sequence[tuple[Signals, float]]) -> int:
    """Ask `child` to end, step by step: each step is a signal and the seconds to wait after it.

    SIGKILL follows the last step. Returns the exit code (negative: the signal that ended it).
    """
    for signal, patience_s in steps:
        if child.poll() is None:
            child.send_signal(signal)
            child.send_signal(Signals.SIGCONT)  # a stopped process would never see the other one
        try:
            return child.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            continue
    child.kill()
    return child.wait()
