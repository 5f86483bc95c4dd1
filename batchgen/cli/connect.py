"""Which server a command talks to, with which key: flags, then environment, then `up`'s file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchgen.settings import Settings


@dataclass(frozen=True, slots=True)
class Server:
    """Where the API is, and the key for it ("" where none is known)."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Server(url={self.url!r})"  # a key has no place in a log


def load_settings(data_dir: Path | None = None) -> "Settings":
    """The environment's settings, `data_dir` over them. Raises InvalidRequest naming the fault."""
    from batchgen.settings import Settings

    return Settings.read() if data_dir is None else Settings.read(data_dir=data_dir.absolute())


def find_server(url: str | None, key: str | None, data_dir: Path | None) -> Server:
    """The server that flags, environment or the running stack name, in this order.

    The key that `batchgen up` wrote is sent to its own server only. Raises InvalidRequest for a
    broken environment, StackError for an unreadable credentials file.
    """
    from batchgen.local.credentials import read_credentials

    settings = load_settings(data_dir)
    if url is None and "api_url" in settings.model_fields_set:
        url = settings.api_url
    key = key if key is not None else settings.api_key or None
    if url is not None and key is not None:
        return Server(url, key)
    stored = read_credentials(settings)
    if stored is None:
        return Server(url or settings.api_url, key or "")
    if url is None:
        return Server(stored.api_url, key or stored.api_key)
    return Server(url, key or (stored.api_key if url == stored.api_url else ""))
