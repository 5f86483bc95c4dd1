"""Everything that can be refused or go wrong, as one tree.

BatchgenError
|-- UserError                 the caller can mend it
|   |-- InvalidRequest        a value is wrong; `param` names it
|   |   `-- UnknownOption     no such option; the nearest known one is named
|   |-- NotFound              no such thing in this project
|   |-- Conflict              the thing is in a state that forbids this
|   |-- NotAuthenticated      no key, or an unknown, expired or revoked one
|   |-- NotPermitted          the key lacks the scope
|   `-- TooLarge              over a configured limit
|-- LostLease                 another holder has the work now: stop
|-- EngineError               the engine cannot do it
|   |-- LoadFailed            the model or its settings cannot be loaded
|   |-- HostDied              the engine process ended
|   `-- HostHung              the engine process made no progress in time
|-- Unavailable               a server that the work needs cannot be reached
`-- StackError                the embedded servers cannot be started or found

None of them knows of HTTP; api/errors.py maps them to statuses in one table.
"""

import difflib
from collections.abc import Iterable


class BatchgenError(Exception):
    """The root: `except BatchgenError` catches all that batchgen raises on purpose."""


class UserError(BatchgenError):
    """The caller can mend it.

    `code` is a stable word for programs, `param` names the offending field where there is one.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None):
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param


class InvalidRequest(UserError):
    """A value is wrong."""

    code = "invalid_value"


class UnknownOption(InvalidRequest):
    """No such option."""

    code = "unknown_option"

    @classmethod
    def named(cls, name: str, known: Iterable[str], *, where: str = "") -> "UnknownOption":
        """The error for `name`, with the nearest of `known` as the mend."""
        options = sorted(known)
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(options)}"
        place = f" in {where}" if where else ""
        return cls(f"unknown option '{name}'{place}: {hint}", param=name)


class NotFound(UserError):
    """No such thing in this project."""

    code = "not_found"


class Conflict(UserError):
    """The thing is in a state that forbids this."""

    code = "conflict"


class NotAuthenticated(UserError):
    """No key, or an unknown, expired or revoked one."""

    code = "invalid_api_key"


class NotPermitted(UserError):
    """The key lacks the scope."""

    code = "insufficient_scope"


class TooLarge(UserError):
    """Over a configured limit."""

    code = "too_large"


class LostLease(BatchgenError):
    """Another holder has the work now: stop, write nothing more."""


class EngineError(BatchgenError):
    """The engine cannot do it."""


class LoadFailed(EngineError):
    """The model or its settings cannot be loaded."""


class HostDied(EngineError):
    """The engine process ended.

    `exit_code` is the process's (negative: the signal that ended it).
    """

    def __init__(self, message: str, *, exit_code: int | None = None):
        super().__init__(message)
        self.exit_code = exit_code


class HostHung(EngineError):
    """The engine process made no progress in time, and was killed."""


class Unavailable(BatchgenError):
    """A server that the work needs (database, broker, object store) cannot be reached."""


class StackError(BatchgenError):
    """The embedded servers cannot be started or found."""
