"""The engine host: `python -m batchgen.engines.host`, a process with one engine and nothing else.

An engine's step may hold the interpreter's lock for its whole length (engines.md, trap 1), so no
thread, database or network lives here: only the loop below. The supervisor (`client.py`) starts it
with descriptors of a pipe and of the breadcrumbs, and reads everything from there; it ends with its
parent.

Exit codes: 0 closed or parent gone, 1 the load failed, 2 the engine raised.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from batchgen.domain.errors import EngineError, UserError
from batchgen.engines.breadcrumbs import TrailWriter
from batchgen.engines.pipe import FramePipe, PipeClosed
from batchgen.engines.protocol import (
    AskStats,
    Busy,
    Cancel,
    Cancelled,
    Close,
    Engine,
    Fatal,
    Finished,
    Identified,
    Identify,
    Load,
    Loaded,
    LoadRefused,
    Outputs,
    Progress,
    Rebuilding,
    Submit,
    ToHost,
)
from batchgen.engines.registry import make_engine
from batchgen.engines.spec import EngineSpec

POLL_S = 0.005
PROGRESS_S = 0.25
_OOM_SCORE = 700
_PR_SET_PDEATHSIG = 1


class Host:
    """The loop: hear the supervisor every few milliseconds, step the engine, report what ended."""

    def __init__(
        self,
        pipe: FramePipe[ToHost],
        trail: TrailWriter,
        make: Callable[[EngineSpec], Engine] = make_engine,
    ):
        self._pipe = pipe
        self._trail = trail
        self._make = make
        self._engine: Engine | None = None
        self._ended: list[Finished] = []
        self._stepped = False
        self._next_progress = 0.0
        self._exit_code: int | None = None

    def serve(self) -> int:
        """Serve until closed or the parent is gone; returns the process's exit code."""
        try:
            try:
                self._loop()
            except PipeClosed:
                raise
            except Exception as error:  # noqa: BLE001 - whatever an engine raises ends this process
                traceback.print_exc()
                self._report()
                self._pipe.send(Fatal(message=f"{type(error).__name__}: {error}"))
                self._exit_code = 2
            self._pipe.drain(timeout_s=5.0)
        except PipeClosed:
            return 0
        return self._exit_code or 0

    def _loop(self) -> None:
        while self._exit_code is None:
            if self._idle():
                self._report_progress()
                self._pipe.wait(None)
            self._hear()
            until = time.monotonic() + POLL_S
            while not self._idle() and time.monotonic() < until:
                self._step()
            self._report()

    def _idle(self) -> bool:
        return self._engine is None or not self._engine.has_work()

    def _step(self) -> None:
        engine = self._loaded()
        self._trail.begin_step(engine.schedule())
        try:
            self._note(engine.step())
        except Rebuilding as needed:
            self._rebuild(needed)
        self._stepped = True

    def _rebuild(self, needed: Rebuilding) -> None:
        """Say that it takes long, before it does."""
        self._note(needed.ended)
        self._report()
        self._pipe.send(Busy())
        self._pipe.drain(timeout_s=5.0)
        self._note(needed.go_on())

    def _note(self, ended: list[Finished]) -> None:
        if ended:
            self._trail.end(finished.id for finished in ended)
            self._ended += ended

    def _report(self) -> None:
        if self._ended:
            ended, self._ended = self._ended, []
            self._pipe.send(Outputs(finished=ended))
        else:
            self._pipe.flush()
        if time.monotonic() >= self._next_progress:
            self._report_progress()

    def _report_progress(self) -> None:
        """Only where steps were made since the last one: an idle host is silent."""
        if self._stepped and self._engine is not None:
            self._stepped = False
            self._next_progress = time.monotonic() + PROGRESS_S
            self._pipe.send(Progress(stats=self._engine.stats()))

    def _hear(self) -> None:
        for frame in self._pipe.receive():
            match frame:
                case Identify(spec=spec, hashes=hashes):
                    self._identify(spec, hashes)
                case Load(spec=spec):
                    self._load(spec)
                case Submit(requests=requests):
                    self._note(self._loaded().submit(requests))
                case Cancel(ids=ids):
                    dropped = self._loaded().cancel(ids)
                    self._trail.end(dropped)
                    # What ended before the cancellation must be heard before its answer.
                    self._report()
                    self._pipe.send(Cancelled(ids=dropped))
                case AskStats():
                    self._pipe.send(Progress(stats=self._loaded().stats()))
                case Close():
                    if self._engine is not None:
                        self._engine.close()
                    self._exit_code = 0
                    return

    def _identify(self, spec: EngineSpec, hashes: str | None) -> None:
        try:
            identity = self._make(spec).compile_identity(spec, hashes)
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises here is why the load failed
            self._refuse(error)
        else:
            self._pipe.send(Identified(identity=identity))

    def _refuse(self, error: Exception) -> None:
        traceback.print_exception(error)
        known = isinstance(error, EngineError | UserError)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        self._pipe.send(LoadRefused(message=message))
        self._exit_code = 1

    def _load(self, spec: EngineSpec) -> None:
        try:
            engine = self._make(spec)
            applied = engine.load(spec)
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises here is why the load failed
            self._refuse(error)
            return
        self._engine = engine
        # What loading has left stays for good: no collection need look at it again.
        gc.collect()
        gc.freeze()
        self._pipe.send(Loaded(applied=applied))

    def _loaded(self) -> Engine:
        if self._engine is None:
            msg = "a frame came before the engine was loaded"
            raise RuntimeError(msg)
        return self._engine


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process with the thread that created it; leave if that is past."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(0)


def be_the_first_to_go() -> None:
    """When memory runs out, the kernel shall end this process, not the supervisor or Postgres."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def main(make: Callable[[EngineSpec], Engine] = make_engine) -> int:
    """Serve with the engines that `make` makes, on the descriptors that the arguments name."""
    parser = argparse.ArgumentParser(prog="batchgen.engines.host", description=__doc__)
    parser.add_argument("--pipe-fd", type=int, required=True)
    parser.add_argument("--trail-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    die_with_parent(args.parent)
    be_the_first_to_go()
    faulthandler.enable()
    pipe: FramePipe[ToHost] = FramePipe(socket.socket(fileno=args.pipe_fd), ToHost)
    with TrailWriter(args.trail_fd) as trail:
        return Host(pipe, trail, make).serve()


if __name__ == "__main__":
    sys.exit(main())
