"""The data directory: made where it is not there, and who may write it."""

import os
import tempfile
from pathlib import Path

from batchgen.domain.errors import StackError
from batchgen.settings import Settings

MEND = "choose one that this user may write with --data-dir or BATCHGEN_DATA_DIR"


def make_directories(settings: Settings) -> None:
    """The data directory and those in it that every stack needs. Raises StackError."""
    try:
        for directory in (settings.data_dir, settings.run_dir, settings.log_dir):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StackError(
            f"cannot write the data directory {settings.data_dir}: {error.strerror}; {MEND}"
        ) from error


def nearest_existing(path: Path) -> Path:
    """The path itself, or the deepest directory above it that is there and may be seen."""
    nearest = path.absolute()
    while not os.path.exists(nearest):  # noqa: PTH110 - Path's own raises where it may not look
        nearest = nearest.parent
    return nearest


def why_not_writable(directory: Path) -> str | None:
    """Why nothing can be made in it, found by trying; None where something can."""
    try:
        Path(tempfile.mkdtemp(prefix=".batchgen-doctor-", dir=directory)).rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return None
