"""Completion windows as users write them: `24h`, `90m`, `7d`."""

import re

from batchgen.domain.errors import InvalidRequest

_UNITS = {"m": 60, "h": 3_600, "d": 86_400}


def window_seconds(written: str, *, longest_s: int) -> int:
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
    if not 0 < seconds <= longest_s:
        raise InvalidRequest(
            f"completion_window '{written}' must lie between 1m and {longest_s // 3_600}h",
            param="completion_window",
        )
    return seconds
