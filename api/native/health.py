"""Alive, ready, and the metrics."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from api.context import Context
from api.deps import AnAdmin, Here
from batchgen.domain.errors import BatchgenError
from batchgen.storage import devices, fleet
from batchgen.storage.migrate import head_revision, revision_of
from batchgen.telemetry.metrics import Fleet, FleetCollector

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class Readiness(BaseModel):
    """Whether requests can be served. The broker is reported; without it work goes on, slower."""

    ready: bool
    database: str
    object_store: str
    broker: str


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers; says nothing of what it needs."""
    return Health()


@router.get("/readyz", responses={503: {"model": Readiness}})
def readyz(here: Here, response: Response) -> Readiness:
    """Whether the database is reachable and of this version, and the object store answers."""
    database, store = _database(here), _object_store(here)
    ready = database == store == "ok"
    response.status_code = 200 if ready else 503
    return Readiness(ready=ready, database=database, object_store=store, broker=here.broker.state())


@router.get("/metrics", dependencies=[AnAdmin], response_class=Response)
def metrics(here: Here) -> Response:
    """Prometheus metrics of this process and of the whole fleet; needs an admin key."""
    with here.database.unit_of_work() as tx:
        ages = fleet.heartbeat_ages(tx)
        seen = Fleet(
            jobs=fleet.jobs_by_state(tx),
            shards=fleet.shards_by_state(tx),
            heartbeat_age_s=tuple(
                (device, ages[device.id]) for device in devices.every(tx) if device.id in ages
            ),
        )
    scrape = CollectorRegistry()
    scrape.register(FleetCollector(seen))
    body = generate_latest(here.registry) + generate_latest(scrape)
    return Response(body, media_type=CONTENT_TYPE_LATEST)


def _database(here: Context) -> str:
    try:
        with here.database.unit_of_work() as tx:
            return "ok" if revision_of(tx) == head_revision() else "schema of another version"
    except (BatchgenError, SQLAlchemyError):
        return "unreachable"


def _object_store(here: Context) -> str:
    try:
        here.store.exists("health/probe")
    except BatchgenError:
        return "unreachable"
    return "ok"
