"""Where the command line of this machine finds the API's URL and a key."""

import json
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from batchgen.domain.errors import StackError
from batchgen.local.state import write_private
from batchgen.settings import Settings


@dataclass(frozen=True, slots=True)
class Credentials:
    api_url: str
    api_key: str

    def __repr__(self) -> str:
        return f"Credentials(api_url={self.api_url!r})"  # a key has no place in a log


def credentials_path(settings: Settings) -> Path:
    return settings.data_dir / "credentials.json"


def read_credentials(settings: Settings) -> Credentials | None:
    """The stored URL and key; None where there are none.

    Raises StackError where the file cannot be understood or others may read it.
    """
    path = credentials_path(settings)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        value = json.loads(path.read_text(encoding="utf-8"))
        found = Credentials(api_url=value["api_url"], api_key=value["api_key"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise StackError(
            f"{path} may not be read by this user: be the one whose data directory it is, or "
            "choose another with --data-dir or BATCHGEN_DATA_DIR"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StackError(
            f"{path} cannot be read ({error}): remove it, and `batchgen up` makes a new one"
        ) from error
    if mode & 0o077:
        raise StackError(f"{path} holds a key and others may read it: `chmod 600 {path}`")
    return found


def write_credentials(settings: Settings, credentials: Credentials) -> None:
    write_private(credentials_path(settings), asdict(credentials))
