"""Who a server runs as: Postgres refuses to run as root."""

import enum
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from batchgen.domain.errors import StackError
from batchgen.local import armed, binaries


class Identity(enum.Enum):
    """The identities that armed.py knows how to take on."""

    SAME = "same"
    NAMESPACE = "namespace"
    NOBODY = "nobody"
    REACHING_NOBODY = "reaching-nobody"

    @property
    def uid(self) -> int:
        """The user id that the disk sees: who must own the files."""
        if self in (Identity.NOBODY, Identity.REACHING_NOBODY):
            return armed.NOBODY
        return os.geteuid()


@cache
def user_namespaces_work() -> bool:
    """Whether a program can be run as an ordinary user of a user namespace of its own."""
    probe = [
        sys.executable,
        "-I",
        "-S",
        armed.__file__,
        str(os.getpid()),
        "9",
        Identity.NAMESPACE.value,
        "clean",
        str(binaries.postgres()),
        "--version",
    ]
    try:
        return subprocess.run(probe, capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def identity_for_postgres(*paths: Path) -> Identity:
    """Who Postgres runs as here; `paths` are those that it must reach.

    An ordinary user runs it as itself. Root runs it in a user namespace, which leaves the files
    root's; where the machine forbids those (many containers do), as uid 65534, which then owns the
    data, with the right to pass through closed parents such as /root where it needs that.
    """
    if os.geteuid() != 0:
        return Identity.SAME
    if user_namespaces_work():
        return Identity.NAMESPACE
    return nobody_for(*paths)


def nobody_for(*paths: Path) -> Identity:
    """The form of uid 65534 that reaches all of `paths`."""
    parents = {parent for path in paths for parent in path.absolute().parents}
    closed = any(parent.exists() and not parent.stat().st_mode & 0o001 for parent in parents)
    return Identity.REACHING_NOBODY if closed else Identity.NOBODY


def give(path: Path, uid: int) -> None:
    """Make `uid` the owner of `path` and of everything below, where it is not so already.

    Root takes only what was root's or uid 65534's: an ordinary user whose cluster it took would be
    locked out of it. Raises StackError where the directory belongs to someone else.
    """
    owner = path.stat().st_uid
    if owner == uid:
        return
    if os.geteuid() != 0 or owner not in (0, armed.NOBODY):
        raise StackError(
            f"{path} belongs to uid {owner}, this process is uid {os.geteuid()}: run it as that "
            "user, or choose another --data-dir"
        )
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.lchown(Path(folder) / name, uid, -1)
    os.lchown(path, uid, -1)  # last: an interrupted change is seen and made again
