"""A network that breaks: hands bytes on to the real server, and cuts answers where told to."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class CuttingProxy:
    """Each entry of `cuts` is used by one connection: so many bytes of answer, then it is cut.

    Connections after the last entry are whole.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.cuts: list[int] = []
        self.n_connections = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.n_connections += 1
            cut = self.cuts.pop(0) if self.cuts else None
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            for source, sink, limit in ((client, server, None), (server, client, cut)):
                thread = threading.Thread(target=_pass_on, args=(source, sink, limit), daemon=True)
                thread.start()
                self._threads.append(thread)

    def cut_open_ones(self) -> None:
        """What is connected now breaks."""
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_open_ones()
        for thread in self._threads:
            thread.join(timeout=5)
        for end in self._sockets:
            end.close()


def _pass_on(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    n_passed = 0
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if limit is not None and n_passed + len(data) > limit:
                sink.sendall(data[: limit - n_passed])
                break
            sink.sendall(data)
            n_passed += len(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting(target: str) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target)
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(timeout=5)
