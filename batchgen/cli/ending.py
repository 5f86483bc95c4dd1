"""SIGTERM and SIGHUP as an exception, so that what a command has started is ended in order."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Ended(BaseException):
    """A signal other than Ctrl-C's has asked this command to end.

    No KeyboardInterrupt, of which typer makes an exit code of its own.
    """

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    @property
    def exit_code(self) -> int:
        """As a shell shows the end by a signal."""
        return 128 + self.number

    def __str__(self) -> str:
        return f"ended by {signal.Signals(self.number).name}"


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP raise Ended; once, then they end the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    # With nohup a hang-up is ignored, and shall be.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]

    def as_usual() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        as_usual()
        raise Ended(number)

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        as_usual()
