"""The Celery applications: one for the control worker (with its beat), one for each device's
worker.
"""

import functools
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery, bootsteps, signals
from celery.exceptions import SecurityWarning

from batchgen.dispatch import (
    FINALIZE,
    INGEST,
    SERVE,
    SWEEP,
    celery_configuration,
    control_queue,
    device_queue,
    pool_queue,
)
from batchgen.domain.errors import LostLease
from batchgen.domain.ids import JobId
from batchgen.settings import Settings
from workers.context import Context
from workers.control import ControlWorker
from workers.device import DeviceWorker
from workers.poller import Poller
from workers.stop import Stop

_CONTROL_THREADS = 2
# How long the end of a worker waits for its pollers, one of which may have to give shards back and
# to end the engine.
_JOIN_S = 15.0
# Without a broker named, Celery still wants a transport; pollers do all the work then.
_NO_BROKER = "memory://"


def run_control(settings: Settings) -> None:
    """Run a control worker until SIGTERM."""
    context = Context.from_settings(settings)
    stop = Stop()
    worker = ControlWorker(context, go_on=lambda: not stop.is_set())
    app = _app(settings)

    @app.task(name=INGEST)
    def ingest(job_id: str) -> None:
        worker.ingest(JobId(job_id))

    @app.task(name=FINALIZE)
    def finalize(job_id: str) -> None:
        worker.finalize(JobId(job_id))

    @app.task(name=SWEEP)
    def sweep() -> None:
        worker.sweep()

    pollers = [
        Poller(look, settings.poll_s, stop, on_lost=_end_this_process, name=name)
        for name, look in worker.looks().items()
    ]
    _run(
        app,
        settings,
        stop,
        pollers,
        name="control",
        queues=[control_queue(settings)],
        threads=_CONTROL_THREADS,
        leave=lambda: None,
    )


def run_device(settings: Settings, device: str, pool: str) -> None:
    """Run a device's worker until SIGTERM. Raises Conflict where the device has a worker
    already.
    """
    context = Context.from_settings(settings)
    worker = DeviceWorker(context, device, pool)
    worker.start()
    app = _app(settings)

    @app.task(name=SERVE)
    def serve() -> None:
        try:
            worker.serve()
        except LostLease:
            _end_this_process()

    def look() -> None:
        worker.serve()
        worker.idle()

    poller = Poller(look, settings.poll_s, worker.stop, on_lost=_end_this_process)
    _run(
        app,
        settings,
        worker.stop,
        [poller],
        name=f"device-{device}",
        queues=[pool_queue(settings, pool), device_queue(settings, pool, device)],
        threads=1,
        leave=worker.leave,
    )


def run_beat(settings: Settings) -> None:
    """Ring the sweep's bell by the clock, until SIGTERM."""
    app = _app(settings)
    app.conf.beat_schedule = {
        "sweep": {
            "task": SWEEP,
            "schedule": settings.sweep_s,
            "options": {"queue": control_queue(settings), "expires": settings.sweep_s},
        }
    }
    _ready(settings)
    app.Beat(scheduler="celery.beat:Scheduler", loglevel=settings.log_level, quiet=True).run()


def _app(settings: Settings) -> Celery:
    # It warns root of messages that are code when read. Ours are JSON, and hold ids only.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    app = Celery("batchgen", set_as_current=False)
    without = {} if settings.broker_url else {"broker_url": _NO_BROKER}
    app.conf.update(celery_configuration(settings) | without)
    return app


def _run(
    app: Celery,
    settings: Settings,
    stop: Stop,
    pollers: Sequence[Poller],
    *,
    name: str,
    queues: list[str],
    threads: int,
    leave: Callable[[], None],
) -> None:
    def shutting_down(**_: Any) -> None:
        stop.set()

    # Weakly held by the signal: this frame keeps the handler alive as long as the worker runs.
    signals.worker_shutting_down.connect(shutting_down)
    step = _step(stop, pollers, leave, functools.partial(_ready, settings))
    app.steps["worker"].add(step)
    app.Worker(
        hostname=f"{name}@{os.uname().nodename}",
        pool="threads",
        concurrency=threads,
        queues=queues,
        loglevel=settings.log_level,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    ).start()


def _step(
    stop: Stop,
    pollers: Sequence[Poller],
    leave: Callable[[], None],
    ready: Callable[[], None],
) -> type[bootsteps.StartStopStep]:
    class PollerStep(bootsteps.StartStopStep):
        """The pollers live from after the pool's start to before its end."""

        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
            for poller in pollers:
                poller.start()
            ready()

        def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
            # SIGQUIT comes here without the signal `worker_shutting_down`.
            stop.set()
            until = time.monotonic() + _JOIN_S
            for poller in pollers:
                poller.join(max(until - time.monotonic(), 0.0))
            leave()

        def terminate(self, worker: Any) -> None:
            self.stop(worker)

    return PollerStep


def _ready(settings: Settings) -> None:
    if settings.ready_file is not None:
        settings.ready_file.write_text(str(os.getpid()))


def _end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
