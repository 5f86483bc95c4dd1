"""Queries over API keys. Only a hash of the secret is ever stored."""

from typing import Any

from sqlalchemy import Connection, Row, func, or_, select, text, update

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import KeyId, Project
from batchgen.domain.jobs import Key, Scope
from batchgen.storage.tables import keys


def insert(
    tx: Connection,
    *,
    key_id: KeyId,
    project: Project,
    name: str,
    scope: Scope,
    secret_hash: str,
    expires_after_s: int | None,
) -> None:
    expires = (
        None
        if expires_after_s is None
        else func.now() + text(f"interval '{int(expires_after_s)} seconds'")
    )
    tx.execute(
        keys.insert().values(
            id=key_id,
            project=project,
            name=name,
            scope=scope,
            secret_hash=secret_hash,
            expires_at=expires,
        )
    )


def usable(tx: Connection, key_id: KeyId) -> tuple[Key, str] | None:
    """The key and its secret's hash; None where it is unknown, revoked or expired."""
    row = tx.execute(
        select(keys).where(
            keys.c.id == key_id,
            keys.c.revoked_at.is_(None),
            or_(keys.c.expires_at.is_(None), keys.c.expires_at > func.now()),
        )
    ).first()
    return None if row is None else (_key(row), row.secret_hash)


def touch(tx: Connection, key_id: KeyId) -> None:
    """Note the use, to the minute, so that a busy key does not rewrite its row at each call."""
    tx.execute(
        update(keys)
        .where(
            keys.c.id == key_id,
            or_(
                keys.c.last_used_at.is_(None),
                keys.c.last_used_at < func.now() - text("interval '1 minute'"),
            ),
        )
        .values(last_used_at=func.now())
    )


def get(tx: Connection, key_id: KeyId) -> Key:
    """Raises NotFound."""
    row = tx.execute(select(keys).where(keys.c.id == key_id)).first()
    if row is None:
        raise NotFound(f"no key '{key_id}'", param="key_id")
    return _key(row)


def every(tx: Connection) -> list[Key]:
    return [_key(row) for row in tx.execute(select(keys).order_by(keys.c.created_at, keys.c.id))]


def lock_usable_admins(tx: Connection) -> list[KeyId]:
    """The admin keys that open something, held against change until the transaction ends."""
    rows = tx.execute(
        select(keys.c.id)
        .where(
            keys.c.scope == Scope.ADMIN,
            keys.c.revoked_at.is_(None),
            or_(keys.c.expires_at.is_(None), keys.c.expires_at > func.now()),
        )
        .order_by(keys.c.id)
        .with_for_update()
    )
    return [KeyId(row.id) for row in rows]


def count_alone(tx: Connection) -> int:
    """How many keys there are, while nobody else counts this way to make the first one."""
    tx.execute(select(func.pg_advisory_xact_lock(func.hashtext("first key"))))
    n: int = tx.execute(select(func.count()).select_from(keys)).scalar_one()
    return n


def revoke(tx: Connection, key_id: KeyId) -> None:
    """Raises NotFound."""
    changed = tx.execute(
        update(keys)
        .where(keys.c.id == key_id)
        .values(revoked_at=func.coalesce(keys.c.revoked_at, func.now()))
    )
    if changed.rowcount == 0:
        raise NotFound(f"no key '{key_id}'", param="key_id")


def _key(row: Row[Any]) -> Key:
    return Key(
        id=KeyId(row.id),
        project=Project(row.project),
        name=row.name,
        scope=Scope(row.scope),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
