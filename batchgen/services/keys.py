"""API keys: `bg_<id>_<secret>`. The secret is shown once; only its hash is kept."""

import hashlib
import hmac
import re
import secrets

from batchgen.domain.errors import Conflict, InvalidRequest, NotAuthenticated
from batchgen.domain.ids import KeyId, Project, new_key_id
from batchgen.domain.jobs import Key, Scope
from batchgen.storage import keys
from batchgen.storage.session import Database

DEFAULT_PROJECT = Project("default")
_PRESENTED = re.compile(r"bg_([0-9a-f]{12})_([0-9a-f]{48})")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SECRET_BYTES = 24
_LONGEST_NAME = 128
_LONGEST_LIFE_S = 10 * 365 * 86_400
# Compared with where there is no such key, so that the time taken tells nothing.
_NO_HASH = hashlib.sha256(b"").hexdigest()


def create(
    database: Database,
    *,
    name: str,
    scope: Scope,
    project: Project = DEFAULT_PROJECT,
    expires_after_s: int | None = None,
) -> tuple[Key, str]:
    """A new key and its secret, which nobody can ever be shown again. Raises InvalidRequest."""
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(
            f"a key's name is 1 to {_LONGEST_NAME} printable characters", param="name"
        )
    if not _PROJECT.fullmatch(project):
        raise InvalidRequest(
            "a project may hold lower-case letters, digits, _ and -, at most 63", param="project"
        )
    if expires_after_s is not None and not 0 < expires_after_s <= _LONGEST_LIFE_S:
        raise InvalidRequest(
            f"a key lives between 1 and {_LONGEST_LIFE_S} seconds", param="expires_in_s"
        )
    key_id, presented, secret_hash = _new()
    with database.unit_of_work() as tx:
        keys.insert(
            tx,
            key_id=key_id,
            project=project,
            name=name,
            scope=scope,
            secret_hash=secret_hash,
            expires_after_s=expires_after_s,
        )
        return keys.get(tx, key_id), presented


def authenticate(database: Database, presented: str) -> Key:
    """The key that was presented. Raises NotAuthenticated, never saying what was wrong."""
    match = _PRESENTED.fullmatch(presented)
    with database.unit_of_work() as tx:
        found = None if match is None else keys.usable(tx, KeyId(match[1]))
        known = _NO_HASH if found is None else found[1]
        given = _hash("" if match is None else match[2])
        if found is None or not hmac.compare_digest(known, given):
            raise NotAuthenticated("the API key is unknown, expired or revoked")
        keys.touch(tx, found[0].id)
    return found[0]


def revoke(database: Database, key_id: KeyId) -> None:
    """The key opens nothing from now on. Raises NotFound, or Conflict for the last admin key."""
    with database.unit_of_work() as tx:
        admins = keys.lock_usable_admins(tx)
        keys.revoke(tx, key_id)
        if admins == [key_id]:
            raise Conflict(
                "this is the last key with the admin scope: make another one first",
                code="last_admin_key",
            )


def ensure_first_key(database_url: str) -> str | None:
    """An admin key where there is no key at all; returns it, this once."""
    database = Database(database_url, pool_size=1)
    try:
        key_id, presented, secret_hash = _new()
        with database.unit_of_work() as tx:
            if keys.count_alone(tx) > 0:
                return None
            keys.insert(
                tx,
                key_id=key_id,
                project=DEFAULT_PROJECT,
                name="first",
                scope=Scope.ADMIN,
                secret_hash=secret_hash,
                expires_after_s=None,
            )
        return presented
    finally:
        database.close()


def _new() -> tuple[KeyId, str, str]:
    key_id = new_key_id()
    secret = secrets.token_hex(_SECRET_BYTES)
    return key_id, f"bg_{key_id}_{secret}", _hash(secret)


def _hash(secret: str) -> str:
    # The secret is random and long: a slow hash would protect nothing more.
    return hashlib.sha256(secret.encode()).hexdigest()
