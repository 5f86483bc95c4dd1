"""The only sender of doorbells: Celery messages that say "there may be work", and carry ids only.

A bell may be lost, repeated or late without harm: the poller of every worker looks at the database
anyway. So ringing never raises and never waits for long.
"""

import time
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from batchgen.domain.ids import JobId
from batchgen.settings import Settings

log = structlog.get_logger(__name__)

INGEST = "batchgen.ingest"
FINALIZE = "batchgen.finalize"
SWEEP = "batchgen.sweep"
SERVE = "batchgen.serve"

# After a failed ring the broker is left alone for this long, so that no caller waits again and
# again.
_REST_S = 2.0


class Bells(Protocol):
    """Who is told that there may be work."""

    def ring_ingest(self, job_id: JobId) -> None: ...

    def ring_finalize(self, job_id: JobId) -> None: ...

    def ring_devices(self, pool: str, device: str | None) -> None:
        """Any worker of the pool, or where work is bound to a device, the workers of that
        device.
        """
        ...


class NoBells:
    """For where there is no broker: pollers find the work."""

    def ring_ingest(self, job_id: JobId) -> None:
        """Nobody hears it."""

    def ring_finalize(self, job_id: JobId) -> None:
        """Nobody hears it."""

    def ring_devices(self, pool: str, device: str | None) -> None:
        """Nobody hears it."""


def control_queue(settings: Settings) -> str:
    return f"{settings.queue_prefix}.control"


def pool_queue(settings: Settings, pool: str) -> str:
    return f"{settings.queue_prefix}.pool.{pool}"


def device_queue(settings: Settings, pool: str, device: str) -> str:
    return f"{settings.queue_prefix}.device.{pool}.{device}"


def celery_configuration(settings: Settings) -> dict[str, Any]:
    """Celery's settings, the same for the sender and for the workers.

    Acked early and without results: the database knows what is done, so a redelivered or lost
    message changes nothing. JSON only. Prefetch 1, so that no worker hoards bells.
    """
    return {
        "broker_url": settings.broker_url,
        "broker_transport_options": {
            "global_keyprefix": f"{settings.queue_prefix}:",
            "socket_timeout": 5.0,
            "socket_connect_timeout": 1.0,
            "health_check_interval": 10,
            "visibility_timeout": 86_400,
        },
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_pool_limit": 2,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        "task_create_missing_queues": True,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_enable_remote_control": True,
        "worker_send_task_events": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "task_publish_retry": False,
        "enable_utc": True,
    }


class Doorbell:
    """Rings over the broker named in the settings; silent where none is named."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Celery | None = None
        self._resting_until = 0.0
        self._lock = Lock()
        if settings.broker_url:
            self._app = Celery("batchgen-bells", set_as_current=False)
            self._app.conf.update(celery_configuration(settings))

    def ring_ingest(self, job_id: JobId) -> None:
        self._send(INGEST, control_queue(self._settings), [job_id])

    def ring_finalize(self, job_id: JobId) -> None:
        self._send(FINALIZE, control_queue(self._settings), [job_id])

    def ring_devices(self, pool: str, device: str | None) -> None:
        if device is None:
            queue = pool_queue(self._settings, pool)
        else:
            queue = device_queue(self._settings, pool, device)
        self._send(SERVE, queue, [])

    def is_reachable(self) -> bool:
        """Whether the broker answers now. False where none is named."""
        if self._app is None:
            return False
        try:
            with self._app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=1)
        except (OperationalError, OSError):
            return False
        return True

    def close(self) -> None:
        if self._app is not None:
            self._app.close()

    def _send(self, task: str, queue: str, args: Sequence[str]) -> None:
        with self._lock:
            if self._app is None or time.monotonic() < self._resting_until:
                return
        try:
            self._app.send_task(task, args=list(args), queue=queue, ignore_result=True, retry=False)
        except (OperationalError, OSError) as error:
            with self._lock:
                self._resting_until = time.monotonic() + _REST_S
            log.warning("bell_not_rung", task=task, reason=type(error).__name__)
