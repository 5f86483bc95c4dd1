"""One finding of the doctor."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found, and what mends it.

    `ok` is None where there was nothing to look at: a stack that is not up is no fault.
    """

    name: str
    ok: bool | None
    detail: str
    mend: str = ""
