"""Prometheus metrics, declared once. Labels are bounded: no id of a user's object is ever one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from batchgen.domain.jobs import Device
from batchgen.domain.states import JobState, ShardState

_SECONDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the database knows of all jobs and devices at one moment. Ages are seconds."""

    jobs: dict[JobState, int]
    shards: dict[ShardState, int]
    heartbeat_age_s: tuple[tuple[Device, float], ...]


class HttpMetrics:
    """Counted by the process that answers; `route` is a template of ours or `none`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "batchgen_http_requests",
            "Answered HTTP requests",
            ("method", "route", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "batchgen_http_request_seconds",
            "From the request's first byte to the answer's last",
            ("method", "route"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.uploaded_bytes = Counter(
            "batchgen_uploaded_bytes", "Bytes of stored uploads, unpacked", registry=registry
        )


class FleetCollector(Collector):
    """The fleet as gauges, for one scrape."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield _gauge(
            "batchgen_jobs",
            "Jobs by state",
            ("state",),
            (((state,), self._fleet.jobs.get(state, 0)) for state in JobState),
        )
        yield _gauge(
            "batchgen_shards",
            "Shards of jobs that have not ended, by state",
            ("state",),
            (((state,), self._fleet.shards.get(state, 0)) for state in ShardState),
        )
        yield _gauge(
            "batchgen_device_heartbeat_age_seconds",
            "Since the device's worker was last heard of",
            ("device", "pool", "state"),
            (
                ((device.id, device.pool, device.state), age_s)
                for device, age_s in self._fleet.heartbeat_age_s
            ),
        )


def _gauge(
    name: str,
    meaning: str,
    labels: tuple[str, ...],
    samples: Iterable[tuple[tuple[str, ...], float]],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
