"""Wait for something that other processes bring about."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T | None], *, timeout_s: float = 30.0, every_s: float = 0.02) -> T:
    """What `look` returns, as soon as it is true. Fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing came within {timeout_s:g} s")
        pause.wait(every_s)
