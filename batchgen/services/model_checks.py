"""Ask a device of the fleet to try a model out, and look how far that is.

A check is no job: it has no lines and no files, waits for a device that has nothing else to do, and
gives up after a while with the reason.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from batchgen.dispatch import Bells
from batchgen.domain.checks import Check
from batchgen.domain.ids import CheckId, Project, new_check_id
from batchgen.engines.registry import spec_warnings
from batchgen.engines.spec import encode_spec
from batchgen.services import models
from batchgen.settings import Settings
from batchgen.storage import devices, fleet, model_checks
from batchgen.storage.session import Database

DEFAULT_PROMPT = "Say hello in one short sentence."
DEFAULT_MAX_TOKENS = 32
DEFAULT_WAIT_S = 60.0
_KEPT_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What shall be checked. `device` None is the model's own, or any of its pool."""

    project: Project
    model: str
    device: str | None = None
    prompt: str = DEFAULT_PROMPT
    max_tokens: int = DEFAULT_MAX_TOKENS
    wait_s: float = DEFAULT_WAIT_S


def ask(database: Database, bells: Bells, asked: Asked) -> Check:
    """A new check of the model's current revision.

    Raises NotFound, or InvalidRequest where its settings cannot work: no device is troubled then.
    """
    check_id = new_check_id()
    with database.unit_of_work() as tx:
        resolved = models.resolve(tx, asked.model, {})
        model_checks.forget(tx, _KEPT_S)
        device = asked.device or resolved.model.device
        model_checks.insert(
            tx,
            check_id=check_id,
            project=asked.project,
            model_id=resolved.model.id,
            engine_spec=encode_spec(resolved.spec),
            fingerprint=resolved.fingerprint,
            pool=resolved.model.pool,
            device=device,
            prompt=asked.prompt,
            max_tokens=asked.max_tokens,
            wait_s=asked.wait_s,
            warnings=spec_warnings(resolved.spec),
        )
        check = model_checks.get(tx, check_id, project=asked.project)
    bells.ring_devices(check.pool, check.device)
    return check


def look(database: Database, settings: Settings, check_id: CheckId, project: Project) -> Check:
    """The check as it stands; what is past its time ends here. Raises NotFound."""
    with database.unit_of_work() as tx:
        check = model_checks.get(tx, check_id, project=project)
        model_checks.reap(tx)
        if model_checks.overdue(tx, check_id):
            model_checks.expire(tx, check_id, _why_nobody_came(tx, check, settings.lease_s))
        return model_checks.get(tx, check_id, project=project)


def _why_nobody_came(tx: Connection, check: Check, lease_s: float) -> str:
    ages = fleet.heartbeat_ages(tx)
    alive = [
        device
        for device in devices.every(tx)
        if device.pool == check.pool
        and device.state != "stopped"
        and ages.get(device.id, lease_s) < lease_s
    ]
    if not alive:
        return (
            f"no device of pool '{check.pool}' is alive: start a worker for one with "
            f"`batchgen up` or `batchgen worker device --pool {check.pool}`"
        )
    fitting = [d for d in alive if check.device in (None, d.device)]
    if not fitting:
        there = ", ".join(sorted({device.device for device in alive}))
        return (
            f"no worker of pool '{check.pool}' that is alive serves device '{check.device}'; they "
            f"serve: {there}"
        )
    doing = ", ".join(f"{device.id} is {device.state}" for device in fitting)
    return f"every device that could run it was busy ({doing}): wait for longer, or check later"
