"""For whom a stack is up: a one-shot command holds a lock while it uses the stack it started.

Where the lock's file is there and nobody holds it, that command was killed: the stack runs for
nobody, and the next one-shot command takes it over.
"""

from pathlib import Path

from batchgen.domain.errors import StackError
from batchgen.local import lock
from batchgen.local.data_directory import make_directories
from batchgen.local.lock import DirectoryLock
from batchgen.settings import Settings


class Loan:
    """The claim of one command on one data directory's stack."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._lock = DirectoryLock(_path(settings))

    @property
    def held(self) -> bool:
        return self._lock.held

    def take(self) -> bool:
        """Take it, where no other command has it; says whether this one has it now."""
        make_directories(self._settings)
        try:
            self._lock.acquire(what="the stack", mend="wait for its end")
        except StackError:
            return False
        return True

    def give_up(self) -> None:
        """The stack is nobody's in particular from now on: only `down` stops it."""
        if self._lock.held:
            _path(self._settings).unlink(missing_ok=True)
            self._lock.release()


def is_orphaned(settings: Settings) -> bool:
    """Whether the command was killed for which the stack is up."""
    path = _path(settings)
    return path.exists() and lock.holder(path) is None


def forget_orphan(settings: Settings) -> None:
    """A new stack has nothing to do with what a killed command had borrowed."""
    if is_orphaned(settings):
        _path(settings).unlink(missing_ok=True)


def _path(settings: Settings) -> Path:
    return settings.run_dir / "loan.lock"
