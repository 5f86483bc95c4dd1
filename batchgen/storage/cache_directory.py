"""A directory of compiled models.

    root.json               the directory's own name for itself
    <namespace>/            an entry: entry.json, and what the runtime wrote
    quarantine/<…>/         entries that were damaged
    loads/<device>.<…>/     one load's own copy, made of links
    hashes/                 content hashes of model files, by the engine hosts

A runtime writes where it reads, and not at once (OpenVINO removes a compiled model that it does not
take, and writes it anew in place). So each load gets a directory of its own, with links to what the
entry holds; what the load wrote is moved into the entry afterwards, file by file.
"""

import contextlib
import glob
import json
import os
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

_ROOT = "root.json"
_NOTE = "entry.json"
_QUARANTINE = "quarantine"
_LOADS = "loads"
_CHUNK_BYTES = 8 << 20
# No compiled model is that small, so this much room is a full disk.
_LITTLE_BYTES = 4 << 20


class KeptFile(msgspec.Struct, frozen=True):
    """A file of an entry as it was written."""

    size: int
    crc32: int


class EntryNote(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry says of itself: `entry.json`.

    `variants` are those of the namespace's compiled models that it holds. `rejected` is why nothing
    is kept.
    """

    namespace: str
    identity: dict[str, Any]
    model_path: str
    variants: list[str] = []
    files: dict[str, KeptFile] = {}
    rejected: str | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


class CacheDirectory:
    """A directory that was opened; all methods raise OSError where the file system refuses."""

    def __init__(self, path: Path, root_id: str) -> None:
        self.path = path
        self.root_id = root_id

    @classmethod
    def open(cls, path: Path, *, make: bool) -> "CacheDirectory":
        """`make` makes the directory where there is none; it gets its name in any case.

        Raises OSError, for a directory that cannot be written, too.
        """
        if make:
            path.mkdir(parents=True, exist_ok=True)
        for folder in (_LOADS, _QUARANTINE):
            (path / folder).mkdir(exist_ok=True)
        named = path / _ROOT
        if not named.exists():
            _write_new(named, {"id": secrets.token_hex(8)})
        try:
            root_id = json.loads(named.read_text())["id"]
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{named} is damaged: remove it") from error
        return cls(path, str(root_id))

    @property
    def hashes(self) -> Path:
        return self.path / "hashes"

    def read(self, name: str) -> EntryNote | None:
        """What the entry says of itself; None where there is none. Raises ValueError for a damaged
        note.
        """
        try:
            note = (self.path / name / _NOTE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(note, type=EntryNote)
        except msgspec.DecodeError as error:
            raise ValueError(f"{_NOTE} cannot be read: {error}") from error

    def damage(self, name: str, note: EntryNote, tick: Callable[[], None]) -> str | None:
        """What is wrong with the entry's files; None: they are as they were written.

        All of them are read; `tick` is called now and then meanwhile.
        """
        for file, kept in note.files.items():
            path = self.path / name / file
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                return f"{file} is missing"
            if size != kept.size:
                return f"{file} has {size} bytes, {kept.size} were written"
            if _crc32(path, tick) != kept.crc32:
                return f"{file} has another checksum than when it was written"
        return None

    def begin_load(self, owner: str, name: str, note: EntryNote | None) -> Path:
        """A directory for one load, with links to the entry's files (none: empty)."""
        own = self.path / _LOADS / f"{owner}.{secrets.token_hex(4)}"
        own.mkdir()
        # What a full disk does to a load shows here, before an engine waits for it.
        with tempfile.NamedTemporaryFile(dir=own) as probe:
            probe.write(bytes(4096))
        for file in () if note is None else note.files:
            (own / file).symlink_to(Path("..") / ".." / name / file)
        return own

    @staticmethod
    def written(own: Path) -> list[Path]:
        """What a load has written into its directory."""
        return sorted(f for f in own.iterdir() if f.is_file() and not f.is_symlink())

    @staticmethod
    def checked(written: list[Path], tick: Callable[[], None]) -> dict[str, KeptFile]:
        """Size and checksum of each file; `tick` is called now and then meanwhile."""
        return {f.name: KeptFile(f.stat().st_size, _crc32(f, tick)) for f in written}

    def keep(self, name: str, note: EntryNote, own: Path, written: Iterable[str]) -> None:
        """Move what a load has written into the entry, which `note` describes from now on.

        The load's directory gets links in exchange: its engine may still read there.
        """
        entry = self.path / name
        entry.mkdir(exist_ok=True)
        for file in written:
            (own / file).replace(entry / file)
            (own / file).symlink_to(Path("..") / ".." / name / file)
        _write(entry / _NOTE, note)

    @staticmethod
    def why_nothing(own: Path) -> str:
        """Why a load may have written nothing."""
        free = shutil.disk_usage(own).free
        if free < _LITTLE_BYTES:
            return f"the disk has {free} bytes left"
        return "the runtime wrote no compiled model"

    def keep_nothing(self, name: str, note: EntryNote, reason: str) -> None:
        """Only the reason stays of the entry."""
        (self.path / name).mkdir(exist_ok=True)
        _write(
            self.path / name / _NOTE,
            msgspec.structs.replace(note, files={}, variants=[], rejected=reason),
        )
        for file in note.files:
            (self.path / name / file).unlink(missing_ok=True)

    def set_aside(self, name: str) -> str:
        """Move the entry into quarantine; returns its name there."""
        aside = f"{_QUARANTINE}/{name}-{secrets.token_hex(4)}"
        (self.path / name).rename(self.path / aside)
        return aside

    def size(self, name: str) -> tuple[int, int]:
        """Bytes and number of an entry's files, as they lie there."""
        sizes = [f.stat().st_size for f in (self.path / name).iterdir() if f.name != _NOTE]
        return sum(sizes), len(sizes)

    def remove(self, name: str) -> None:
        """Remove an entry: out of the way first, so that no half of it is taken for an entry."""
        gone = self.path / _LOADS / f"removed.{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).rename(gone)
            shutil.rmtree(gone)

    def end_load(self, own: Path) -> None:
        """The load's own directory is not needed any more."""
        shutil.rmtree(own, ignore_errors=True)

    def end_loads(self, owner: str) -> None:
        """Remove what an owner has left behind."""
        for own in (self.path / _LOADS).glob(f"{glob.escape(owner)}.????????"):
            self.end_load(own)

    def end_loads_of_others(self, owners: Collection[str], older_than_s: float) -> None:
        """Remove what others than these owners have left behind, and half removed entries."""
        until = time.time() - older_than_s
        for own in (self.path / _LOADS).iterdir():
            if own.name.rpartition(".")[0] not in owners and own.stat().st_mtime < until:
                self.end_load(own)

    def names(self) -> list[str]:
        """The entries that lie here."""
        here = [p.parent for p in self.path.glob(f"*/{_NOTE}")]
        aside = [p.parent for p in self.path.glob(f"{_QUARANTINE}/*/{_NOTE}")]
        return sorted(p.relative_to(self.path).as_posix() for p in [*here, *aside])


def load_owner(device_id: str) -> str:
    """A device as the owner of the directories of its loads."""
    return "".join(c if c.isalnum() or c in "-." else "_" for c in device_id)


def _crc32(path: Path, tick: Callable[[], None]) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
            tick()
    return checksum


def _write(path: Path, note: EntryNote) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(msgspec.json.encode(note))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_new(path: Path, content: Mapping[str, Any]) -> None:
    """The same; where another has been quicker, its file stays."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_text(json.dumps(content))
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
