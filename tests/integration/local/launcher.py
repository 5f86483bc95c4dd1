"""Starts an embedded server in a process of its own, for the tests to kill.

`python launcher.py postgres|valkey HOME` prints one line, the server's pid and URL, and holds the
server until its input ends; then it prints what a client read.
"""

import sys
from pathlib import Path

import psycopg

from batchgen.domain.errors import StackError
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.local.valkey import EmbeddedValkey


def main(kind: str, home: Path) -> None:
    log_path = home.with_name(f"{home.name}.log")
    server = (
        EmbeddedPostgres(home, log_path=log_path, durable=False)
        if kind == "postgres"
        else EmbeddedValkey(home, log_path=log_path)
    )
    try:
        with server:
            print(server.pid, server.url, flush=True)
            sys.stdin.read()
            if isinstance(server, EmbeddedPostgres):
                with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
                    print(connection.execute("SELECT 6 * 7").fetchone(), flush=True)
    except StackError as error:
        sys.exit(f"refused: {error}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
