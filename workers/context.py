"""What every worker works with."""

from dataclasses import dataclass

from batchgen.dispatch import Bells, Doorbell
from batchgen.domain import failpoints
from batchgen.domain.clock import Clock, SystemClock
from batchgen.domain.errors import StackError
from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database


@dataclass(frozen=True, slots=True)
class Context:
    """One process's connections and settings."""

    settings: Settings
    database: Database
    store: ObjectStore
    bells: Bells
    clock: Clock

    @classmethod
    def from_settings(cls, settings: Settings) -> "Context":
        """Raises StackError where no database is named."""
        if not settings.database_url:
            raise StackError("BATCHGEN_DATABASE_URL is not set: a worker needs the database")
        failpoints.arm(settings.failpoint)
        return cls(
            settings=settings,
            database=Database(settings.database_url),
            store=ObjectStore.from_url(settings.store),
            bells=Doorbell(settings),
            clock=SystemClock(),
        )
