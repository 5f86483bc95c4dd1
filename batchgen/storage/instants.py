"""Points in time by the database's clock: the only clock that leases and deadlines go by."""

from typing import Any

from sqlalchemy import func


def from_now(seconds: float) -> Any:
    """An SQL expression: so many seconds after the transaction's begin."""
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
