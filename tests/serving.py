"""The real API in a thread of this process, behind a real socket."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from api.app import create_app
from batchgen.settings import Settings


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serve while inside; gives the URL, without a path."""
    # The socket listens before the server is up: a first request waits instead of failing.
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(settings), log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        bound.close()
    assert not thread.is_alive()
