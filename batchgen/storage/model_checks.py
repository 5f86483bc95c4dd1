"""Queries over checks of models: each write names the state it begins from, or its lease."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from batchgen.domain.checks import (
    CHECK_ATTEMPTS,
    Check,
    CheckEvent,
    CheckState,
    ClaimedCheck,
    advance_check,
)
from batchgen.domain.errors import LostLease, NotFound
from batchgen.domain.ids import CheckId, DeviceId, LeaseToken, ModelId, Project, new_lease_token
from batchgen.storage.instants import from_now
from batchgen.storage.tables import model_checks, models

_c = model_checks.c


def insert(
    tx: Connection,
    *,
    check_id: CheckId,
    project: Project,
    model_id: ModelId,
    engine_spec: Mapping[str, Any],
    fingerprint: str,
    pool: str,
    device: str | None,
    prompt: str,
    max_tokens: int,
    wait_s: float,
    warnings: Sequence[str],
) -> None:
    """A check that waits for a device, at most `wait_s`."""
    tx.execute(
        model_checks.insert().values(
            id=check_id,
            project=project,
            model_id=model_id,
            engine_spec=dict(engine_spec),
            fingerprint=fingerprint,
            pool=pool,
            device=device,
            prompt=prompt,
            max_tokens=max_tokens,
            wait_s=wait_s,
            warnings=list(warnings),
            state=CheckState.WAITING,
            expires_at=from_now(wait_s),
        )
    )


def get(tx: Connection, check_id: CheckId, *, project: Project) -> Check:
    """Raises NotFound."""
    row = tx.execute(_with_model().where(_c.id == check_id, _c.project == project)).first()
    if row is None:
        raise NotFound(f"no check '{check_id}'", param="check_id")
    return _check(row)


def reap(tx: Connection) -> int:
    """Checks whose worker has not been heard of wait again, or fail where it was the last try."""
    return _lose(tx, _c.lease_until < func.now())


def release_all_of(tx: Connection, device_id: DeviceId) -> int:
    """The same for what a dead predecessor of this device's worker held."""
    return _lose(tx, _c.holder == device_id)


def release(tx: Connection, token: LeaseToken) -> None:
    """Give a check back that has not been run: it counts as no attempt. Fine where it is lost."""
    tx.execute(
        update(model_checks)
        .where(_c.lease_token == token)
        .values(
            state=advance_check(CheckState.RUNNING, CheckEvent.LOSE),
            attempts=_c.attempts - 1,
            expires_at=func.now() + _waiting_time(),
            **_NO_LEASE,
        )
    )


def claim(
    tx: Connection, *, pool: str, device: str, holder: DeviceId, lease_s: float
) -> ClaimedCheck | None:
    """The oldest check that waits for this device, under lease; None where there is none."""
    oldest = (
        select(_c.id)
        .where(
            _c.state == CheckState.WAITING,
            _c.pool == pool,
            or_(_c.device.is_(None), _c.device == device),
            _c.expires_at > func.now(),
        )
        .order_by(_c.created_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    token = new_lease_token()
    claimed = tx.execute(
        update(model_checks)
        .where(_c.id == oldest.scalar_subquery())
        .values(
            state=advance_check(CheckState.WAITING, CheckEvent.CLAIM),
            lease_token=token,
            lease_until=from_now(lease_s),
            holder=holder,
            attempts=_c.attempts + 1,
        )
        .returning(_c.id)
    ).first()
    if claimed is None:
        return None
    row = tx.execute(_with_model().where(_c.id == claimed.id)).one()
    return ClaimedCheck(
        id=CheckId(row.id),
        model=row.model,
        engine_spec=row.engine_spec,
        fingerprint=row.fingerprint,
        prompt=row.prompt,
        max_tokens=row.max_tokens,
        token=token,
    )


def renew(tx: Connection, token: LeaseToken, lease_s: float) -> None:
    """Raises LostLease where the check is another's by now, or has ended."""
    _held(tx, token, {"lease_until": from_now(lease_s)})


def passed(tx: Connection, token: LeaseToken, report: Mapping[str, Any]) -> None:
    """Raises LostLease."""
    _end(tx, token, CheckEvent.SUCCEED, report=dict(report))


def failed(tx: Connection, token: LeaseToken, reason: str) -> None:
    """Raises LostLease."""
    _end(tx, token, CheckEvent.FAIL, reason=reason)


def overdue(tx: Connection, check_id: CheckId) -> bool:
    """Whether it has waited for too long; it is locked for this transaction if so."""
    query = (
        select(_c.id)
        .where(_c.id == check_id, _c.state == CheckState.WAITING, _c.expires_at <= func.now())
        .with_for_update()
    )
    return tx.execute(query).first() is not None


def expire(tx: Connection, check_id: CheckId, reason: str) -> None:
    """End a check that waits, for good."""
    tx.execute(
        update(model_checks)
        .where(_c.id == check_id, _c.state == CheckState.WAITING)
        .values(
            state=advance_check(CheckState.WAITING, CheckEvent.EXPIRE),
            reason=reason,
            ended_at=func.now(),
        )
    )


def forget(tx: Connection, older_than_s: float) -> None:
    """Remove checks that ended so long ago."""
    long_ago = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_s)
    tx.execute(delete(model_checks).where(_c.ended_at < long_ago))


_NO_LEASE: dict[Any, Any] = {"lease_token": None, "lease_until": None, "holder": None}


def _lose(tx: Connection, which: ColumnElement[bool]) -> int:
    running = and_(_c.state == CheckState.RUNNING, which)
    given_up = tx.execute(
        update(model_checks)
        .where(running, _c.attempts >= CHECK_ATTEMPTS)
        .values(
            state=advance_check(CheckState.RUNNING, CheckEvent.FAIL),
            reason=f"{CHECK_ATTEMPTS} workers were lost while they ran it; the last was "
            + func.coalesce(_c.holder, literal("unknown")),
            ended_at=func.now(),
            lease_token=None,
            lease_until=None,
        )
    )
    again = tx.execute(
        update(model_checks)
        .where(running)
        .values(
            state=advance_check(CheckState.RUNNING, CheckEvent.LOSE),
            expires_at=func.now() + _waiting_time(),
            **_NO_LEASE,
        )
    )
    return given_up.rowcount + again.rowcount


def _waiting_time() -> Any:
    return func.make_interval(0, 0, 0, 0, 0, 0, _c.wait_s)


def _end(
    tx: Connection,
    token: LeaseToken,
    event: CheckEvent,
    *,
    report: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> None:
    _held(
        tx,
        token,
        {
            "state": advance_check(CheckState.RUNNING, event),
            # A JSON column would write None as a value.
            "report": null() if report is None else report,
            "reason": reason,
            "ended_at": func.now(),
            "lease_token": None,
            "lease_until": None,
        },
    )


def _held(tx: Connection, token: LeaseToken, values: dict[str, Any]) -> None:
    changed = tx.execute(update(model_checks).where(_c.lease_token == token).values(**values))
    if changed.rowcount == 0:
        raise LostLease("the check is another worker's by now")


def _with_model() -> Select[Any]:
    return select(model_checks, models.c.name.label("model"), models.c.revision).join(
        models, models.c.id == _c.model_id
    )


def _check(row: Row[Any]) -> Check:
    return Check(
        id=CheckId(row.id),
        project=Project(row.project),
        model=row.model,
        revision=row.revision,
        fingerprint=row.fingerprint,
        pool=row.pool,
        device=row.device,
        state=CheckState(row.state),
        warnings=tuple(row.warnings),
        holder=None if row.holder is None else DeviceId(row.holder),
        report=row.report,
        reason=row.reason,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
