"""A key belongs to one server: another program that listens where it was does not get it."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell


class Stranger:
    """Somebody else's web server; remembers what was presented to it."""

    def __init__(self) -> None:
        self.presented: list[str] = []
        presented = self.presented

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                presented.append(self.headers.get("Authorization", ""))
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    made = Stranger()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def remember(data_dir: Path, url: str) -> None:
    """What a stack at this URL leaves behind when it has ended."""
    (data_dir / "run").mkdir(parents=True)
    (data_dir / "run" / "stack.lock").write_text("1\n")
    credentials = data_dir / "credentials.json"
    credentials.write_text(json.dumps({"api_url": url, "api_key": "bg_kept_secret"}))
    credentials.chmod(0o600)


def test_a_stranger_on_the_port_of_a_stack_that_is_down_gets_no_key(
    shell: Shell, stranger: Stranger
) -> None:
    remember(shell.data_dir, stranger.url)
    for mine in (shell, shell.with_(BATCHGEN_API_KEY="bg_mine_secret")):
        done = mine("list")
        assert done.code == 3
        assert f"no stack is up on {shell.data_dir}" in done.err
        assert f"`batchgen up --data-dir {shell.data_dir}`" in done.err
    assert stranger.presented == []


def test_the_kept_key_is_not_presented_even_where_the_address_is_named(
    shell: Shell, stranger: Stranger
) -> None:
    remember(shell.data_dir, stranger.url)
    assert shell.with_(BATCHGEN_API_URL=stranger.url)("list").code != 0
    assert shell("list", "--url", stranger.url).code != 0
    assert stranger.presented == ["", ""]


def test_a_key_that_is_named_with_its_address_is_presented(
    shell: Shell, stranger: Stranger
) -> None:
    remember(shell.data_dir, stranger.url)
    shell("list", "--url", stranger.url, "--key", "bg_mine_secret")
    assert stranger.presented == ["Bearer bg_mine_secret"]
