"""A stack for one command: the one that is up, or one started for it and stopped after it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from batchgen.cli.api_command import Api
from batchgen.cli.ending import Ended, ended_by_signals
from batchgen.cli.render import note
from batchgen.domain.errors import BatchgenError, StackError

if TYPE_CHECKING:
    from batchgen.local.loan import Loan
    from batchgen.local.state import StackState
    from batchgen.settings import Settings

_START_TIMEOUT_S = 60.0
_OPEN = "validating,queued,running,paused,finalizing,cancelling,expiring"
_NAMED_JOBS = 3


class Stack:
    """The stack in use. `keep` it where work goes on in it after the command has ended."""

    def __init__(self, *, started_here: bool, keep: bool):
        self.started_here = started_here
        self.keep = keep


@contextmanager
def stack_for(api: Api, *, keep_up: bool, quiet: bool) -> Iterator[Stack]:
    """A stack that answers. A server named by flag or environment is used as it is.

    One that is started here is stopped at the end unless work is open in it, and at SIGTERM or
    SIGHUP (raised as Ended) in any case. If this process is killed, the next one takes the stack
    over. Raises StackError where none can be started.
    """
    with ended_by_signals():
        if api.names_server:
            yield Stack(started_here=False, keep=True)
            return
        from batchgen.cli.connect import load_settings
        from batchgen.local.loan import Loan

        settings = load_settings(api.data_dir)
        loan = Loan(settings)
        try:
            started_here = _bring_up(api, settings, loan, keep_up=keep_up, quiet=quiet)
            stack = Stack(started_here=started_here, keep=keep_up or not loan.held)
            with _ending(api, settings, stack, quiet=quiet):
                yield stack
        finally:
            loan.give_up()


def _bring_up(api: Api, settings: "Settings", loan: "Loan", *, keep_up: bool, quiet: bool) -> bool:
    """See to it that a stack is up; says whether it was started here.

    The loan is held afterwards where this command is to stop it.
    """
    from batchgen.local import state
    from batchgen.local.loan import is_orphaned

    running = state.status(settings)
    if running is None:
        if not keep_up:
            loan.take()
        _start(settings, quiet=quiet)
        return True
    if is_orphaned(settings) and loan.take():
        note("taking over the stack of a command that was killed")
    _wait_until_ready(settings, running)
    if loan.held:
        for job in _open_jobs(api):
            note(f"{job['id']} of before goes on in it: `batchgen watch {job['id']}{api.flags}`")
    return False


def _start(settings: "Settings", *, quiet: bool) -> None:
    from batchgen.local.detached import down, up_detached

    if not quiet:
        note(f"starting a stack on {settings.data_dir}")
    started = time.monotonic()
    try:
        running = up_detached(settings)
    except (KeyboardInterrupt, Ended):
        down(settings)  # it is in a session of its own: no signal to us has reached it
        note("stopped the stack")
        raise
    for warning in running.warnings:
        note(f"warning: {warning}")
    if not quiet:
        note(f"up at {running.api_url} after {time.monotonic() - started:.1f} s")


@contextmanager
def _ending(api: Api, settings: "Settings", stack: Stack, *, quiet: bool) -> Iterator[None]:
    try:
        yield
    except Ended:
        if not stack.keep:
            stack.keep = True
            _stop_at_once(api, settings)
        raise
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

    busy = _open_jobs(api)
    if busy:
        note(f"the stack stays up for {busy[0]['id']}; `batchgen down{api.flags}` stops it")
        return
    down(settings)
    if not quiet:
        note("stopped the stack")


def _stop_at_once(api: Api, settings: "Settings") -> None:
    """Stop it although work is open, and say how that goes on."""
    from batchgen.local.detached import down

    busy = _open_jobs(api)
    down(settings)
    note("stopped the stack")
    if busy:
        note("What was finished is kept. To go on with the rest:")
        note(f"  batchgen up --detach{api.flags}")
        for job in busy:
            note(f"  batchgen watch {job['id']}{api.flags}")


def _open_jobs(api: Api) -> list[dict[str, Any]]:
    try:
        return api.client.jobs(limit=_NAMED_JOBS, states=_OPEN)
    except BatchgenError:
        return []  # it does not answer any more: nothing is gained by leaving it up
