"""Clients of the running API, and what stands behind it."""

from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.api.hand import Hand
from tests.house import House

Connect = Callable[[str], httpx.Client]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Small shards, small files."""
    return settings.model_copy(update={"shard_lines": 4, "max_file_bytes": 4 * 2**20})


@pytest.fixture
def house(database: Database, store: ObjectStore, settings: Settings) -> House:
    """The services behind the API, with the simulated model `sim` registered."""
    made = House(database, store, settings)
    made.register()
    return made


@pytest.fixture
def hand(house: House) -> Hand:
    return Hand(house)


@pytest.fixture
def connect(api_server: str) -> Iterator[Connect]:
    """Makes a client that presents this key."""
    made: list[httpx.Client] = []

    def connected(key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = httpx.Client(base_url=api_server, headers=headers, timeout=30, trust_env=False)
        made.append(client)
        return client

    yield connected
    for client in made:
        client.close()


@pytest.fixture
def user(connect: Connect, user_key: str) -> httpx.Client:
    return connect(user_key)


@pytest.fixture
def admin(connect: Connect, admin_key: str) -> httpx.Client:
    return connect(admin_key)


@pytest.fixture
def other(connect: Connect, other_key: str) -> httpx.Client:
    """Of another project."""
    return connect(other_key)


@pytest.fixture
def client(api_server: str, user_key: str) -> Iterator[openai.OpenAI]:
    """The official client, which does not try again by itself."""
    with openai.OpenAI(base_url=f"{api_server}/v1", api_key=user_key, max_retries=0) as made:
        yield made
