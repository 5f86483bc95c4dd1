"""The HTTP client against the real API, over a network that breaks."""

import http.server
import threading
from collections.abc import Iterator
from io import BytesIO

import pytest

from batchgen.client import Client
from batchgen.client.upload import Upload
from batchgen.domain.errors import (
    Conflict,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    TooLarge,
    Unavailable,
)
from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.api.hand import Hand
from tests.cli.cutting_proxy import CuttingProxy, cutting
from tests.house import House, chat_lines, jsonl


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"shard_lines": 4, "max_file_bytes": 2**20})


@pytest.fixture
def house(database: Database, store: ObjectStore, settings: Settings) -> House:
    made = House(database, store, settings)
    made.register()
    return made


@pytest.fixture
def hand(house: House) -> Hand:
    return Hand(house)


@pytest.fixture
def proxy(api_server: str) -> Iterator[CuttingProxy]:
    with cutting(api_server) as made:
        yield made


@pytest.fixture
def client(proxy: CuttingProxy, user_key: str) -> Iterator[Client]:
    """Over the network that breaks; it has reached the server once."""
    with Client(proxy.url, user_key) as made:
        made.models()
        yield made


def fresh(proxy: CuttingProxy, key: str, *cuts: int) -> Client:
    """A client whose next connections are cut."""
    proxy.cuts[:] = cuts
    return Client(proxy.url, key)


def test_a_download_goes_on_where_it_broke_off(
    house: House, hand: Hand, proxy: CuttingProxy, user_key: str
) -> None:
    job = house.queue(chat_lines(40))
    hand.work_off(job.id, failed=[3])
    whole = BytesIO()
    with Client(proxy.url, user_key) as client:
        client.download(job.id, "results", whole)
    for part, n_lines in (("results", 39), ("errors", 1), ("timings", 39)):
        broken = BytesIO()
        with fresh(proxy, user_key, 700, 900, 1100) as client:
            n_bytes = client.download(job.id, part, broken)
        assert n_bytes == len(broken.getvalue())
        assert broken.getvalue().count(b"\n") == n_lines
        if part == "results":
            assert broken.getvalue() == whole.getvalue()


def test_results_so_far_that_break_off_are_an_error(
    house: House, hand: Hand, proxy: CuttingProxy, user_key: str
) -> None:
    job = house.queue(chat_lines(40))
    for _ in range(5):
        hand.finish(hand.claim())
    out = BytesIO()
    with fresh(proxy, user_key, 700) as client, pytest.raises(Unavailable):
        client.download(job.id, "results", out)


def test_events_that_break_off_go_on_without_repeating_one(
    house: House, hand: Hand, proxy: CuttingProxy, user_key: str
) -> None:
    job = house.queue(chat_lines(4))
    hand.work_off(job.id)
    with Client(proxy.url, user_key) as client:
        straight = [event.id for event in client.events(job.id) if event.id is not None]
    with fresh(proxy, user_key, 300, 350, 380) as client:
        names = []
        recorded = []
        for event in client.events(job.id):
            names.append(event.name)
            recorded += [event.id] if event.id is not None else []
    assert recorded == straight
    assert names[-1] == "end"
    assert proxy.n_connections >= 4


def test_a_server_that_goes_away_is_told_once_and_so_is_its_return(
    house: House, hand: Hand, proxy: CuttingProxy, user_key: str
) -> None:
    job = house.queue(chat_lines(4))
    hand.work_off(job.id)
    told: list[str] = []
    with fresh(proxy, user_key, 300, 0, 0) as client, client.telling(told.append):
        assert list(client.events(job.id))[-1].name == "end"
    away, back = told
    assert away == f"the batchgen API at {proxy.url} is away: trying again for 30 s"
    assert back == f"the batchgen API at {proxy.url} is back"


def test_an_answer_that_is_lost_makes_no_second_job(
    house: House, client: Client, proxy: CuttingProxy
) -> None:
    file_id = house.upload(jsonl(chat_lines(1)))
    proxy.cut_open_ones()
    proxy.cuts[:] = [0, 100]
    made = client.create_job({"input_file_id": file_id})
    assert [job["id"] for job in client.jobs(limit=10)] == [made["id"]]
    assert proxy.n_connections == 4


def test_a_server_that_never_answered_is_an_error_at_once(proxy: CuttingProxy) -> None:
    with fresh(proxy, "", 0) as client, pytest.raises(Unavailable, match="`batchgen up`"):
        client.models()
    assert proxy.n_connections == 1


def test_an_upload_arrives_byte_by_byte_whether_or_not_its_length_is_known(
    client: Client, house: House
) -> None:
    chunks = [bytes([i]) * 1000 for i in range(200)]
    data = b"".join(chunks)
    sent: list[int] = []
    for n_bytes in (len(data), None):
        file = client.upload(Upload("a ü.jsonl", iter(chunks), n_bytes), sent.append)
        assert file["bytes"] == len(data)
        assert file["filename"] == "a ü.jsonl"
        assert client.file(file["id"])["bytes"] == len(data)
    assert sent[-1] == len(data)


def test_an_upload_over_the_limit_says_so(client: Client) -> None:
    chunks = (b"x" * 2**16 for _ in range(64))
    with pytest.raises(TooLarge, match="more than"):
        client.upload(Upload("big.jsonl", chunks))


def test_an_upload_that_breaks_off_is_not_sent_again(proxy: CuttingProxy, user_key: str) -> None:
    with fresh(proxy, user_key, 0) as client, pytest.raises(Unavailable):
        client.upload(Upload("a.jsonl", iter([b"{}\n"]), 3))
    assert proxy.n_connections == 1


def test_jobs_are_listed_over_pages(house: House, client: Client) -> None:
    made = [house.submit(chat_lines(1)).id for _ in range(7)]
    assert [job["id"] for job in client.jobs(limit=5)] == list(reversed(made))[:5]
    assert len(client.jobs(limit=200)) == 7


def test_errors_are_those_of_the_domain(client: Client, house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(1))
    hand.work_off(job.id)
    with pytest.raises(NotFound, match="no such job"):
        client.job("batch_none")
    with pytest.raises(Conflict):
        client.act(job.id, "cancel")
    with pytest.raises(NotPermitted):
        client.keys()
    with pytest.raises(InvalidRequest) as refused:
        client.create_job({"input_file_id": job.input_file_id, "modle": "x"})
    assert "model" in str(refused.value)


def test_a_wrong_key_names_the_ways_to_give_one(api_server: str) -> None:
    for key in ("bg_x_y", ""):
        with Client(api_server, key) as client, pytest.raises(NotAuthenticated, match="--key"):
            client.models()
    with pytest.raises(NotAuthenticated, match="characters"):
        Client(api_server, "bg_\n")


def test_the_base_url_of_an_openai_client_is_understood(api_server: str, user_key: str) -> None:
    with Client(f"{api_server}/v1/", user_key) as client:
        assert client.url == api_server
        assert client.models() == []


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://here", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        Client(url, "")


@pytest.fixture
def other_server() -> Iterator[str]:
    """Somebody else's web server."""
    server = http.server.HTTPServer(("127.0.0.1", 0), _SomebodyElse)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class _SomebodyElse(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = {"/v1/jobs": (200, b"{}"), "/v1/models": (200, b"<html>")}.get(
            self.path.partition("?")[0], (404, b"<html>nothing")
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def test_somebody_elses_server_is_known_as_such(other_server: str) -> None:
    with Client(other_server, "") as client:
        for call in (lambda: client.jobs(limit=1), client.models):
            with pytest.raises(Unavailable, match="not as a batchgen API does"):
                call()
        with pytest.raises(NotFound, match="not as a batchgen API does"):
            client.devices()
