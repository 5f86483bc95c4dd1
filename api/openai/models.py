"""Registered models: listed for all, registered and retired by admins."""

from fastapi import APIRouter

from api.deps import ACaller, AnAdmin, Here, ModelInPath
from api.openai.shapes import ModelList, ModelObject
from api.values import Body, Deleted, JsonObject, Name
from batchgen.services.models import register
from batchgen.storage import models

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[ACaller])


class NewModel(Body):
    """A model to register. `device` binds its jobs to workers of that device."""

    name: Name
    spec: JsonObject
    pool: Name = "default"
    device: Name | None = None


@router.post("", dependencies=[AnAdmin])
def register_model(body: NewModel, here: Here) -> ModelObject:
    """Register a model or a new revision of one; the same spec again changes nothing."""
    model = register(
        here.database,
        here.settings,
        name=body.name,
        spec=body.spec,
        pool=body.pool,
        device=body.device,
    )
    return ModelObject.of(model)


@router.get("")
def list_models(here: Here) -> ModelList:
    """The newest revision in use of every model."""
    with here.database.unit_of_work() as tx:
        return ModelList(data=[ModelObject.of(model) for model in models.every(tx)])


@router.get("/{name:path}")
def get_model(name: ModelInPath, here: Here) -> ModelObject:
    """The newest revision in use."""
    with here.database.unit_of_work() as tx:
        return ModelObject.of(models.current(tx, name))


@router.delete("/{name:path}", dependencies=[AnAdmin])
def retire_model(name: ModelInPath, here: Here) -> Deleted:
    """No new job can name it; jobs that have begun go on."""
    with here.database.unit_of_work() as tx:
        models.retire(tx, name)
    return Deleted(id=name, object="model")
