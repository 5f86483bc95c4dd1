"""The directory that OpenVINO keeps compiled models in, seen from one load."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from batchgen.engines.spec import OpenVinoSpec


@dataclass(frozen=True)
class BlobDirectory:
    """Where compiled models are kept; `dir` None: nowhere, and `note` says why."""

    dir: Path | None
    note: str | None
    before: dict[str, tuple[int, int]] = field(default_factory=dict)

    def state(self) -> str:
        """`warm`: all came from here. `cold`: something was compiled. `off`.

        A compiled model that the device does not take back is compiled and written anew, without a
        word: so what counts is whether anything was written.
        """
        if self.dir is None:
            return "off"
        return "warm" if self.before and _files(self.dir) == self.before else "cold"


def blob_directory(spec: OpenVinoSpec) -> BlobDirectory:
    """A directory that cannot be written breaks no load."""
    if not spec.cache or spec.cache_dir is None:
        return BlobDirectory(None, None if spec.cache_dir is None else "switched off")
    path = Path(spec.cache_dir)
    try:
        path.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return BlobDirectory(None, f"not used: {path}: {os.strerror(error.errno or 0)}")
    return BlobDirectory(path, None, before=_files(path))


def _files(path: Path) -> dict[str, tuple[int, int]]:
    """What tells a written compiled model from an untouched one: its inode and time."""
    stats = {file.name: file.stat() for file in path.glob("*.blob")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}
