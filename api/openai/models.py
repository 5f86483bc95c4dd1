"""Registered models: listed for all, registered and retired by admins."""

import contextlib
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks
from pydantic import Field

from api.deps import ACaller, AnAdmin, Here, ModelInPath
from api.openai.shapes import DescribedModel, FleetPlan, ModelList, ModelObject, ModelStep
from api.values import Body, Deleted, JsonObject, Name
from batchgen.domain.errors import Unavailable
from batchgen.domain.jobs import Model
from batchgen.services import model_content, model_fleet
from batchgen.services.models import register, warnings
from batchgen.storage import models

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[ACaller])


class NewModel(Body):
    """A model to register. `device` is what it runs on: CPU, GPU.1, HETERO:GPU.0,CPU."""

    name: Name
    spec: JsonObject
    pool: Name = "default"
    device: Name | None = None


class Fleet(Body):
    """All models, by name; each with its engine settings and, beside them, `pool` and `device`.

    `prune` retires the models that are not named, `dry_run` says what would change and changes
    nothing.
    """

    models: Annotated[dict[Name, JsonObject], Field(max_length=1_000)]
    prune: bool = False
    dry_run: bool = False


@router.post("", dependencies=[AnAdmin])
def register_model(body: NewModel, here: Here, after: BackgroundTasks) -> DescribedModel:
    """Register a model or a new revision of one; the same settings and files again change
    nothing.

    The content hash of a large model is null at first: it is read after the answer.
    """
    model = register(
        here.database,
        here.settings,
        name=body.name,
        spec=body.spec,
        pool=body.pool,
        device=body.device,
    )
    after.add_task(_read_contents, here)
    return _described(here, model)


@router.put("", dependencies=[AnAdmin])
def apply_models(body: Fleet, here: Here, after: BackgroundTasks) -> FleetPlan:
    """Make the models those declared: all of them or, where an entry is bad, none."""
    steps = model_fleet.apply(
        here.database, here.settings, body.models, prune=body.prune, dry_run=body.dry_run
    )
    if not body.dry_run:
        after.add_task(_read_contents, here)
    return FleetPlan(applied=not body.dry_run, data=[ModelStep.of(step) for step in steps])


@router.get("")
def list_models(here: Here) -> ModelList:
    """The newest revision in use of every model."""
    with here.database.unit_of_work() as tx:
        return ModelList(data=[ModelObject.of(model) for model in models.every(tx)])


@router.get("/{name:path}")
def get_model(name: ModelInPath, here: Here) -> DescribedModel:
    """The newest revision in use, and what one should know of it as things are now."""
    with here.database.unit_of_work() as tx:
        model = models.current(tx, name)
    return _described(here, model)


@router.delete("/{name:path}", dependencies=[AnAdmin])
def retire_model(name: ModelInPath, here: Here) -> Deleted:
    """No new job can name it; jobs that have begun go on."""
    with here.database.unit_of_work() as tx:
        models.retire(tx, name)
    return Deleted(id=name, object="model")


def _read_contents(here: Here) -> None:
    """Nobody waits for it, and whoever needs a hash that is still unknown reads it himself."""
    with contextlib.suppress(Unavailable):
        model_content.fill_all(here.database, here.settings)


def _described(here: Here, model: Model) -> DescribedModel:
    with here.database.unit_of_work() as tx:
        noted = warnings(tx, here.settings, model)
    return DescribedModel.described(model, noted)
