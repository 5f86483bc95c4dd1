"""Servers that outlived the process that started them."""

import os
import time
from collections.abc import Collection
from pathlib import Path
from signal import Signals

from batchgen.domain.errors import StackError


def _stat_fields(pid: int) -> tuple[str, str] | None:
    """Name and state of a process, None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()[0]


def working_in(directory: Path, names: Collection[str]) -> list[int]:
    """The live processes called one of `names` whose working directory is `directory`.

    This is what tells a server of ours from a stranger that has got its process id: both servers
    work in their own data directory.
    """
    try:
        place = directory.stat()
    except FileNotFoundError:
        return []
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        fields = _stat_fields(pid)
        if fields is None or fields[0] not in names or fields[1] == "Z":
            continue
        try:
            cwd = os.stat(f"/proc/{pid}/cwd")  # noqa: PTH116 (a link of the kernel's, followed once)
        except OSError:  # gone, or another user's
            continue
        if (cwd.st_dev, cwd.st_ino) == (place.st_dev, place.st_ino):
            found.append(pid)
    return sorted(found)


def stop(
    directory: Path, names: Collection[str], steps: Collection[tuple[Signals, float]], *, what: str
) -> list[int]:
    """End the processes that `working_in` finds; returns those that were there.

    Each step is a signal and the seconds to wait after it; SIGKILL follows the last one. Raises
    StackError where a process survives even that.
    """
    first = working_in(directory, names)
    left = first
    for signal, patience_s in (*steps, (Signals.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience_s
        for pid in left:
            try:
                os.kill(pid, signal)
                os.kill(pid, Signals.SIGCONT)  # a stopped one would never see the other signal
            except ProcessLookupError:
                continue
            except PermissionError as error:
                raise StackError(
                    f"{what} (process {pid}) still runs on {directory} as another user: stop it "
                    "as that user"
                ) from error
        while left and time.monotonic() < deadline:
            time.sleep(0.01)
            left = working_in(directory, names)
        if not left:
            return first
    raise StackError(f"{what} (process {left[0]}) on {directory} does not end, even by SIGKILL")
