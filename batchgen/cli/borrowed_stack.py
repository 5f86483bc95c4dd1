"""A stack for one command: the one that is up, or one started for it and stopped after it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from batchgen.cli.api_command import Api
from batchgen.cli.render import note
from batchgen.domain.errors import BatchgenError, StackError

if TYPE_CHECKING:
    from batchgen.local.state import StackState
    from batchgen.settings import Settings

_START_TIMEOUT_S = 60.0
_OPEN = "validating,queued,running,paused,finalizing,cancelling,expiring"


class Stack:
    """The stack in use. `keep` it where work goes on in it after the command has ended."""

    def __init__(self, *, started_here: bool, keep: bool):
        self.started_here = started_here
        self.keep = keep


@contextmanager
def stack_for(api: Api, *, keep_up: bool, quiet: bool) -> Iterator[Stack]:
    """A stack that answers. A server named by flag or environment is used as it is.

    Raises StackError where none can be started.
    """
    if api.names_server:
        yield Stack(started_here=False, keep=True)
        return
    from batchgen.cli.connect import load_settings
    from batchgen.local import state
    from batchgen.local.detached import down, up_detached

    settings = load_settings(api.data_dir)
    running = state.status(settings)
    stack = Stack(started_here=running is None, keep=keep_up or running is not None)
    if running is None:
        if not quiet:
            note(f"starting a stack on {settings.data_dir}")
        started = time.monotonic()
        try:
            running = up_detached(settings)
        except KeyboardInterrupt:
            down(settings)  # it is in a session of its own: the Ctrl-C has not reached it
            raise
        if not quiet:
            note(f"up at {running.api_url} after {time.monotonic() - started:.1f} s")
    else:
        _wait_until_ready(settings, running)
    try:
        yield stack
    finally:
        if not stack.keep:
            _stop_if_idle(api, settings, quiet=quiet)


def _wait_until_ready(settings: "Settings", running: "StackState | None") -> None:
    from batchgen.local import state

    deadline = time.monotonic() + _START_TIMEOUT_S
    while running is None or not running.ready:
        if time.monotonic() > deadline:
            raise StackError(
                f"the stack on {settings.data_dir} does not get ready: `batchgen doctor` says why"
            )
        time.sleep(0.1)
        running = state.status(settings)


def _stop_if_idle(api: Api, settings: "Settings", *, quiet: bool) -> None:
    from batchgen.local.detached import down

    try:
        busy = api.client.jobs(limit=1, states=_OPEN)
    except BatchgenError:
        busy = []  # it does not answer any more: nothing is gained by leaving it up
    if busy:
        note(f"the stack stays up for {busy[0]['id']}; `batchgen down` stops it")
        return
    down(settings)
    if not quiet:
        note("stopped the stack")
