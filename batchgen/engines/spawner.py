"""Starting processes from a thread that outlives them."""

import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache


class Spawner:
    """A thread that starts processes and never ends.

    The parent-death signal follows the thread that created a process: started from a short-lived
    thread, a host would be killed when that thread is done.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[
            tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]
        ] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="engine-spawner", daemon=True).start()

    def start(
        self,
        command: Sequence[str],
        *,
        fds: Sequence[int],
        log_fd: int,
        env: Mapping[str, str] | None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own (the terminal's Ctrl-C is the supervisor's)."""

        def spawn() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                pass_fds=fds,
                env=env,
                start_new_session=True,
            )

        future: Future[subprocess.Popen[bytes]] = Future()
        self._work.put((spawn, future))
        return future.result()

    def _run(self) -> None:
        while True:
            spawn, future = self._work.get()
            try:
                future.set_result(spawn())
            except OSError as error:
                future.set_exception(error)


@cache
def spawner(_pid: int) -> Spawner:
    """This process's spawner; a fork has the memory of its parent's, but not the thread."""
    return Spawner()
