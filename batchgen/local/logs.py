"""The log files of the stack: one a process, the last few starts kept."""

from pathlib import Path

KEPT = 5


def rotate(path: Path) -> None:
    """Make way for a new log: `x.log` becomes `x.log.1`, and so on; the oldest is dropped."""
    if not path.exists() or path.stat().st_size == 0:
        return
    for number in range(KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.replace(path.with_name(f"{path.name}.1"))


def tail(path: Path, *, lines: int = 8) -> str:
    """The last lines of a log file, for an error message; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8_192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
