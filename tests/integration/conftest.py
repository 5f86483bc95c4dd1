"""A house for each test."""

import pytest

from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from tests.house import House


@pytest.fixture
def house(database: Database, store: ObjectStore, settings: Settings) -> House:
    """Services and workers without processes; its durations are short."""
    quick = {"step_timeout_s": 2.0, "checkpoint_s": 0.1, "heartbeat_s": 0.5, "shard_lines": 10}
    return House(database, store, settings.model_copy(update=quick))
