"""What the routes work with: made once a process, closed with it."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from api.broker import BrokerWatch
from api.hints import JobHints
from batchgen.dispatch import Doorbell
from batchgen.domain.errors import StackError
from batchgen.settings import Settings
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database
from batchgen.telemetry.metrics import HttpMetrics

# Routes run in up to 40 threads; most hold a connection for a few milliseconds.
_POOL_SIZE = 10


@dataclass(frozen=True, slots=True)
class Context:
    """The process's connections, settings and metrics."""

    settings: Settings
    database: Database
    store: ObjectStore
    bells: Doorbell
    broker: BrokerWatch
    hints: JobHints
    registry: CollectorRegistry
    metrics: HttpMetrics

    @classmethod
    def open(
        cls, settings: Settings, registry: CollectorRegistry, metrics: HttpMetrics
    ) -> "Context":
        """Connect lazily: the database and the broker may still be away. Raises StackError."""
        if not settings.database_url:
            raise StackError(
                "BATCHGEN_DATABASE_URL is not set: `batchgen up` starts the API with a database"
            )
        bells = Doorbell(settings)
        return cls(
            settings=settings,
            database=Database(settings.database_url, pool_size=_POOL_SIZE),
            store=ObjectStore.from_url(settings.store),
            bells=bells,
            broker=BrokerWatch(bells, settings.broker_url),
            hints=JobHints(settings.database_url),
            registry=registry,
            metrics=metrics,
        )

    def close(self) -> None:
        self.hints.close()
        self.bells.close()
        self.database.close()
