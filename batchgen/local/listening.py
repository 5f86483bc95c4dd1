"""The socket that the API listens on, held by the supervisor.

The supervisor binds it and hands it down, so nobody can take the port between a check and the
start, and clients wait out a restart of the API instead of being refused.
"""

import contextlib
import errno
import socket

import psutil

from batchgen.domain.errors import StackError

_BACKLOG = 2048


def listen(host: str, port: int, *, insist: bool) -> socket.socket:
    """A listening TCP socket on `host` and `port`; port 0 takes a free one.

    A port in use is an error where the caller insists on it (it was asked for), and else replaced
    by a free one. Raises StackError.
    """
    try:
        return _bound(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise StackError(
                f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another "
                "--host or --port"
            ) from error
        if insist:
            raise StackError(
                f"port {port} on {host} is in use{_by_whom(port)}: choose another --port, or 0 "
                "for any free one"
            ) from error
    return _bound(host, 0)


def url_of(bound: socket.socket) -> str:
    """The URL by which a client on this machine reaches the socket."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    # Accepted connections inherit it. A server that is handed a descriptor does not set it by
    # itself, and each answer in two packets then waits for a delayed ACK: 40 ms.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _by_whom(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.pid and connection.laddr[1:2] == (port,):
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""
