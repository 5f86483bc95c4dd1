"""API keys: made, listed and revoked by admins."""

from fastapi import APIRouter
from pydantic import Field

from api.deps import AnAdmin, Here, KeyInPath
from api.native.shapes import KeyList, KeyObject
from api.values import Body, Deleted, Name
from batchgen.domain.errors import InvalidRequest
from batchgen.domain.ids import Project
from batchgen.domain.jobs import Scope
from batchgen.services.keys import DEFAULT_PROJECT, create, revoke
from batchgen.storage import keys

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[AnAdmin])


class NewKey(Body):
    """A key to make. A project comes into being with its first key."""

    name: Name
    scope: str = Scope.USER.value
    project: Name = str(DEFAULT_PROJECT)
    expires_in_s: int | None = Field(None, ge=1)


@router.post("")
def create_key(body: NewKey, here: Here) -> KeyObject:
    """Make a key. Its secret is in this answer and nowhere else."""
    if body.scope not in set(Scope):
        raise InvalidRequest(f"scope must be one of: {', '.join(Scope)}", param="scope")
    key, secret = create(
        here.database,
        name=body.name,
        scope=Scope(body.scope),
        project=Project(body.project),
        expires_after_s=body.expires_in_s,
    )
    return KeyObject.of(key, secret)


@router.get("")
def list_keys(here: Here) -> KeyList:
    """All keys of all projects, oldest first."""
    with here.database.unit_of_work() as tx:
        return KeyList(data=[KeyObject.of(key) for key in keys.every(tx)])


@router.delete("/{key_id}")
def revoke_key(key_id: KeyInPath, here: Here) -> Deleted:
    """Revoke a key, at once. The last one with the admin scope stays."""
    revoke(here.database, key_id)
    return Deleted(id=key_id, object="key")
