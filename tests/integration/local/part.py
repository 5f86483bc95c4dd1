"""A small process for a stack of the tests to run: `python part.py KIND [FD]`.

api        answers 200 on the listening socket FD, with its process id as the body
worker     touches its ready file and waits to be asked to end
stubborn   the same, but does not end when asked
failing    ends with a message, without getting ready
slow       never gets ready
"""

import os
import signal
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid()}\n".encode())

    def log_message(self, *_: object) -> None:
        return


def serve(fd: int) -> None:
    server = HTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=fd)
    server.serve_forever()


def main(kind: str, *rest: str) -> None:
    if kind == "failing":
        sys.exit("the wheels have come off")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if kind == "stubborn" else signal.SIG_DFL)
    if kind == "api":
        serve(int(rest[0]))
    if kind != "slow":
        Path(os.environ["BATCHGEN_READY_FILE"]).touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
