"""How long the steps of a start take; some of them run side by side."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds by the name of the step, in the order in which they ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - began, 3)
