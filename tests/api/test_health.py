"""Health, readiness and metrics, in good days and bad."""

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from api.context import Context
from api.openapi import PAGE, described
from batchgen.domain.errors import StackError
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.settings import Settings
from batchgen.telemetry.metrics import HttpMetrics
from tests.api.hand import Hand
from tests.conftest import Servers
from tests.house import House, chat_lines
from tests.serving import serving


def readiness(settings: Settings) -> tuple[int, dict[str, object]]:
    with serving(settings) as url:
        answer = httpx.get(f"{url}/readyz", trust_env=False, timeout=30)
    return answer.status_code, answer.json()


def test_a_service_with_all_it_needs_is_ready(settings: Settings, servers: Servers) -> None:
    status, said = readiness(settings.model_copy(update={"broker_url": servers.broker_url}))
    ready = {"ready": True, "database": "ok", "object_store": "ok", "broker": "ok"}
    assert (status, said) == (200, ready)


def test_without_a_broker_it_is_ready_and_says_so(settings: Settings) -> None:
    assert readiness(settings)[1]["broker"] == "none"
    away = settings.model_copy(update={"broker_url": "redis+socket:///nowhere/valkey.sock"})
    status, said = readiness(away)
    assert (status, said["ready"], said["broker"]) == (200, True, "unreachable")


def test_without_its_database_it_is_alive_and_not_ready(settings: Settings) -> None:
    away = settings.model_copy(
        update={"database_url": "postgresql+psycopg://batchgen@/x?host=/nowhere"}
    )
    with serving(away) as url, httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["database"]) == (503, "unreachable")
        refused = client.get("/v1/jobs", headers={"Authorization": f"Bearer bg_{0:012}_{0:048}"})
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert refused.headers["retry-after"]
        assert "nowhere" not in refused.text


def test_a_database_of_another_schema_is_not_ready(
    settings: Settings, postgres: EmbeddedPostgres
) -> None:
    empty = settings.model_copy(update={"database_url": postgres.url_of("template1")})
    status, said = readiness(empty)
    assert (status, said["database"]) == (503, "schema of another version")


def test_an_api_without_a_database_url_does_not_start(settings: Settings) -> None:
    registry = CollectorRegistry()
    nowhere = settings.model_copy(update={"database_url": ""})
    with pytest.raises(StackError, match="BATCHGEN_DATABASE_URL"):
        Context.open(nowhere, registry, HttpMetrics(registry))


def test_metrics_count_jobs_shards_devices_and_requests(
    admin: httpx.Client, house: House, hand: Hand
) -> None:
    done = house.queue(chat_lines(6))
    hand.work_off(done.id)
    house.queue(chat_lines(6))
    house.worker().leave()
    hand.claim()
    admin.get(f"/v1/jobs/{done.id}")
    admin.get("/v1/none/such")
    answer = admin.get("/metrics")
    assert answer.status_code == 200
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["batchgen_jobs", "completed"] == 1
    assert found["batchgen_jobs", "running"] == 1
    assert found["batchgen_jobs", "failed"] == 0
    assert found["batchgen_shards", "pending"] == 1
    assert found["batchgen_shards", "leased"] == 1
    assert found["batchgen_http_requests_total", "/v1/jobs/{job_id}", "200", "GET"] == 1
    assert found["batchgen_http_requests_total", "404", "none", "none"] == 1
    ages = [v for k, v in found.items() if k[0] == "batchgen_device_heartbeat_age_seconds"]
    assert len(ages) == 1 and 0 <= ages[0] < 60
    assert done.id not in answer.text


def test_the_described_interface_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == described(), "run `make reference`"


def test_the_interface_is_described_by_the_server(api_server: str) -> None:
    described_paths = httpx.get(f"{api_server}/openapi.json", trust_env=False).json()["paths"]
    assert {"/v1/files", "/v1/batches", "/v1/models", "/v1/jobs"} <= set(described_paths)
    refused = described_paths["/v1/jobs"]["post"]["responses"]["4XX"]["content"]
    assert list(refused) == ["application/problem+json"]
