"""The application: `uvicorn --factory api.app:create_app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector

import batchgen
from api import errors
from api.context import Context
from api.deps import nothing_asked_beside
from api.errors import OpenAIErrorEnvelope, Problem
from api.guard import Guard
from api.native import caches, checks, devices, events, health, jobs, keys, results
from api.openai import batches, files, models, online
from batchgen.settings import Settings
from batchgen.telemetry.logs import configure
from batchgen.telemetry.metrics import HttpMetrics

# Checks before models: a model's name may hold slashes, and so takes every path below it.
_OPENAI: tuple[APIRouter, ...] = (
    files.router,
    batches.router,
    checks.router,
    models.router,
    online.router,
)
_NATIVE: tuple[APIRouter, ...] = (
    jobs.router,
    results.router,
    events.router,
    devices.router,
    caches.router,
    keys.router,
    health.router,
)


class Application(FastAPI):
    """FastAPI, describing errors as they are sent."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = errors.with_problem_types(super().openapi())
        return self.openapi_schema


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application on these settings; without them on the environment's, logging to stderr.

    Its connections are opened when it starts and closed when it ends.
    """
    if settings is None:
        settings = Settings.read()
        configure(settings.log_level)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = HttpMetrics(registry)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        context = Context.open(settings, registry, metrics)
        context.hints.start()
        app.state.context = context
        try:
            yield
        finally:
            context.close()

    app = Application(
        title="batchgen",
        version=batchgen.__version__,
        description="Offline LLM inference: a JSONL of requests in, every result exactly once out.",
        lifespan=lifespan,
        # Interactive pages load their scripts from elsewhere; the description itself is enough.
        docs_url=None,
        redoc_url=None,
        # A redirect would name the host that the client claims to have called.
        redirect_slashes=False,
        dependencies=[Depends(nothing_asked_beside)],
        generate_unique_id_function=lambda route: route.name,
    )
    app.add_middleware(partial(Guard, metrics=metrics))
    errors.install(app)
    for router in _OPENAI:
        app.include_router(router, responses=errors.documented(OpenAIErrorEnvelope))
    for router in _NATIVE:
        app.include_router(router, responses=errors.documented(Problem))
    return app
