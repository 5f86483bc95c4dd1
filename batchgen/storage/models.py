"""Queries over registered models. A revision never changes; a new registration makes a new one."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, select, text, update
from sqlalchemy.dialects.postgresql import distinct_on

from batchgen.domain.errors import NotFound
from batchgen.domain.ids import ModelId
from batchgen.domain.jobs import Model
from batchgen.storage.tables import models


def insert(
    tx: Connection,
    *,
    model_id: ModelId,
    name: str,
    spec: Mapping[str, Any],
    fingerprint: str,
    content_hash: str | None,
    pool: str,
    device: str | None,
    draft_content_hash: str | None = None,
    seal: Mapping[str, Any] | None = None,
) -> int:
    """The next revision under this name; returns its number."""
    # Two registrations of one name at the same time: the second waits and numbers itself after.
    lock_name(tx, name)
    last = tx.execute(
        select(func.coalesce(func.max(models.c.revision), 0)).where(models.c.name == name)
    ).scalar_one()
    tx.execute(
        models.insert().values(
            id=model_id,
            name=name,
            revision=last + 1,
            spec=dict(spec),
            fingerprint=fingerprint,
            content_hash=content_hash,
            draft_content_hash=draft_content_hash,
            seal=None if seal is None else dict(seal),
            pool=pool,
            device=device,
        )
    )
    return int(last) + 1


def current(tx: Connection, name: str) -> Model:
    """The newest revision in use. Raises NotFound."""
    row = tx.execute(
        select(models)
        .where(models.c.name == name, models.c.retired_at.is_(None))
        .order_by(models.c.revision.desc())
        .limit(1)
    ).first()
    if row is None:
        known = ", ".join(sorted({m.name for m in every(tx)})) or "none"
        raise NotFound(
            f"no model '{name}' (registered: {known}; add one with `batchgen model add`)",
            code="model_not_found",
            param="model",
        )
    return _model(row)


def get(tx: Connection, model_id: ModelId) -> Model:
    """One revision. Raises NotFound."""
    row = tx.execute(select(models).where(models.c.id == model_id)).first()
    if row is None:
        raise NotFound("no such model", code="model_not_found", param="model")
    return _model(row)


def revisions(tx: Connection, name: str) -> list[Model]:
    rows = tx.execute(
        select(models).where(models.c.name == name).order_by(models.c.revision.desc())
    )
    return [_model(row) for row in rows]


def every(tx: Connection) -> list[Model]:
    """The newest revision in use of each name."""
    rows = tx.execute(
        select(models)
        .ext(distinct_on(models.c.name))
        .where(models.c.retired_at.is_(None))
        .order_by(models.c.name, models.c.revision.desc())
    )
    return [_model(row) for row in rows]


def lock_name(tx: Connection, name: str) -> None:
    """Until the transaction ends nobody else registers or retires under this name."""
    tx.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"model:{name}"))))


def reseal(tx: Connection, model_id: ModelId, seal: Mapping[str, Any]) -> None:
    """The same content under other times, as after a copy."""
    tx.execute(update(models).where(models.c.id == model_id).values(seal=dict(seal)))


def set_content(
    tx: Connection, model_id: ModelId, content_hash: str, draft_content_hash: str | None
) -> None:
    """What the sealed files hash to, once that is known; what is known already stays."""
    tx.execute(
        update(models)
        .where(models.c.id == model_id, models.c.content_hash.is_(None))
        .values(content_hash=content_hash, draft_content_hash=draft_content_hash)
    )


def retire(tx: Connection, name: str) -> None:
    """No new job can name it; jobs that pinned it go on. Raises NotFound."""
    changed = tx.execute(
        update(models)
        .where(models.c.name == name, models.c.retired_at.is_(None))
        .values(retired_at=text("now()"))
    )
    if changed.rowcount == 0:
        raise NotFound(f"no model '{name}'", code="model_not_found", param="model")


def _model(row: Row[Any]) -> Model:
    return Model(
        id=ModelId(row.id),
        name=row.name,
        revision=row.revision,
        spec=row.spec,
        fingerprint=row.fingerprint,
        content_hash=row.content_hash,
        pool=row.pool,
        device=row.device,
        created_at=row.created_at,
        retired_at=row.retired_at,
        draft_content_hash=row.draft_content_hash,
        seal=row.seal,
    )
