"""Completion windows as users write them: `24h`, `90m`, `7d`."""

import re

from batchgen.domain.errors import InvalidRequest

_UNITS = {"m": 60, "h": 3_600, "d": 86_400}


def window_seconds(written: str, *, longest_s: int | None = None) -> int:
    """The window in seconds. Raises InvalidRequest for another form, zero, or one over
    `longest_s`.
    """
    match = re.fullmatch(r"([0-9]{1,9})([mhd])", written)
    if match is None:
        raise InvalidRequest(
            f"completion_window '{written}' is not of the form <n>m, <n>h or <n>d, as in 24h",
            param="completion_window",
        )
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds == 0 or (longest_s is not None and seconds > longest_s):
        most = "" if longest_s is None else f" and at most {longest_s // 3_600}h"
        raise InvalidRequest(
            f"completion_window '{written}' must be at least 1m{most}", param="completion_window"
        )
    return seconds
