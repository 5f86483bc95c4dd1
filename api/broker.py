"""Whether the broker answers: told to readiness, which does not depend on it."""

import time
from threading import Lock
from typing import Literal

from batchgen.dispatch import Doorbell

# A broker that is away is slow to say so, and readiness is asked for often.
_REST_S = 5.0

BrokerState = Literal["ok", "unreachable", "none"]


class BrokerWatch:
    """Remembers the last look, so that polling readiness does not poll the broker."""

    def __init__(self, bells: Doorbell, broker_url: str) -> None:
        self._bells = bells
        self._broker_url = broker_url
        self._lock = Lock()
        self._looked_at: float | None = None
        self._answers = False

    def state(self) -> BrokerState:
        """`none` where the settings name no broker."""
        if not self._broker_url:
            return "none"
        with self._lock:
            now = time.monotonic()
            if self._looked_at is None or now - self._looked_at >= _REST_S:
                self._answers = self._bells.is_reachable()
                self._looked_at = time.monotonic()
            return "ok" if self._answers else "unreachable"
