"""Which server a command talks to, with which key: flags, then environment, then `up`'s file."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from batchgen.domain.errors import StackError

if TYPE_CHECKING:
    from batchgen.settings import Settings


# A cold start has found its port, and its servers are up, after a few seconds.
_START_TIMEOUT_S = 30.0


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

    The key that `batchgen up` wrote is sent to its own server only, and only while that is up:
    another program may listen on its port afterwards. Raises InvalidRequest for a broken
    environment, StackError for an unreadable credentials file or a stack that is not up.
    """
    from batchgen.local import state
    from batchgen.local.credentials import read_credentials

    settings = load_settings(data_dir)
    if url is None and "api_url" in settings.model_fields_set:
        url = settings.api_url
    key = key if key is not None else settings.api_key or None
    if url is not None and key is not None:
        return Server(url, key)
    up_at = _url_of_stack(settings)
    stored = read_credentials(settings)
    # Where no supervisor ever was (the parts were started one by one), whoever wrote the
    # credentials answers for their URL.
    if not state.lock_path(settings).exists() and stored is not None:
        up_at = stored.api_url
    place = url or up_at
    if place is not None:
        own_key = stored.api_key if stored and stored.api_url == place == up_at else ""
        return Server(place, key or own_key)
    if stored is None:
        return Server(settings.api_url, key or "")
    raise StackError(
        f"no stack is up on {settings.data_dir}: start it with "
        f"`batchgen up{data_dir_flag(settings)}`, or name another server by BATCHGEN_API_URL"
    )


def data_dir_flag(settings: "Settings") -> str:
    """The flag that leads another command to the same data directory; empty for the default one."""
    from batchgen.settings import default_data_dir

    if settings.data_dir == default_data_dir():
        return ""
    return f" --data-dir {shlex.quote(str(settings.data_dir))}"


def _url_of_stack(settings: "Settings") -> str | None:
    """Where the API of the stack that is up listens; None where none is.

    Its supervisor holds the listening socket as long as it holds the directory's lock, so nobody
    else can answer there. One that has just begun to start is waited for.
    """
    from batchgen.local import state

    deadline = time.monotonic() + _START_TIMEOUT_S
    while (running := state.status(settings)) is not None and time.monotonic() < deadline:
        if running.api_url:
            return running.api_url
        time.sleep(0.05)
    return None
