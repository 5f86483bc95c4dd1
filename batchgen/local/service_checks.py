"""What the doctor looks at in a running service: stack, database, broker, store, API."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from batchgen.domain.errors import BatchgenError, StackError
from batchgen.local import state
from batchgen.local.broker_check import broker_check
from batchgen.local.check import Check
from batchgen.local.child import answers_200
from batchgen.local.credentials import read_credentials
from batchgen.local.loan import is_orphaned
from batchgen.settings import Settings
from batchgen.storage.migrate import is_current
from batchgen.storage.objects import ObjectStore

_SKEW_ALLOWED_S = 2.0
_CONNECT_TIMEOUT_S = 3
_VERSION_AND_TIME = text(
    "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())"
)


def service_checks(settings: Settings) -> Iterator[Check]:
    try:
        running = state.status(settings)
    except StackError as error:
        yield Check("stack", ok=False, detail=str(error), mend="as said")
        return
    yield stack(settings, running)
    database_url = settings.database_url or (running.database_url if running else "")
    broker_url = settings.broker_url or (running.broker_url if running else "")
    api_url = running.api_url if running else ""
    if database_url:
        yield from database(database_url)
    else:
        yield Check("database", ok=None, detail="not up: no stack runs and no URL is set")
    if broker_url:
        yield broker_check(broker_url)
    else:
        yield Check("broker", ok=None, detail="not up: no stack runs and no URL is set")
    yield object_store(settings.store)
    yield credentials(settings)
    if api_url:
        yield api(api_url)
    elif "api_url" in settings.model_fields_set:
        yield api(settings.api_url)
    else:
        yield Check("api", ok=None, detail="not up")


def stack(settings: Settings, running: state.StackState | None) -> Check:
    if running is None:
        return Check("stack", ok=None, detail="not up: `batchgen up` starts it")
    dead = [part.name for part in running.parts if not part.alive]
    restarts = {part.name: part.restarts for part in running.parts if part.restarts}
    words = [f"process {running.pid} at {running.api_url or '(starting)'}"]
    words += ["left by a command that was killed"] if is_orphaned(settings) else []
    words += [f"down: {', '.join(dead)}"] if dead else []
    words += [f"started again: {', '.join(f'{k} {v}x' for k, v in restarts.items())}"] * bool(
        restarts
    )
    return Check(
        "stack",
        ok=running.ready and not dead,
        detail="; ".join(words),
        mend=f"look into {settings.log_dir}",
    )


def database(url: str) -> Iterator[Check]:
    mend = "start it, and see BATCHGEN_DATABASE_URL"
    if url.startswith("postgresql"):
        engine = create_engine(url, connect_args={"connect_timeout": _CONNECT_TIMEOUT_S})
    else:
        yield Check("database", ok=False, detail="not a Postgres URL", mend=mend)
        return
    try:
        with engine.connect() as connection:
            before = time.time()
            version, now = connection.execute(_VERSION_AND_TIME).one()
            skew_s = float(now) - (before + time.time()) / 2
        current = is_current(url)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        yield Check("database", ok=False, detail=f"cannot be reached: {reason}", mend=mend)
        return
    finally:
        engine.dispose()
    yield Check("database", ok=True, detail=f"Postgres {version}")
    yield Check(
        "schema",
        ok=current,
        detail="of this version" if current else "of another version",
        mend="`batchgen db upgrade`",
    )
    yield Check(
        "clock",
        ok=abs(skew_s) <= _SKEW_ALLOWED_S,
        detail=f"{skew_s:+.2f} s from this machine to the database",
        mend="run a time service (chrony, systemd-timesyncd) on both machines; leases go by the "
        "database's clock and are safe, times in logs and metrics are not comparable",
    )


def object_store(url: str) -> Check:
    """Whether an object can be written, read and deleted."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).exists():
        return Check("object store", ok=None, detail=f"{url} (not made yet)")
    key = f"doctor/{secrets.token_hex(8)}"
    try:
        store = ObjectStore.from_url(url)
        store.put(key, b"probe")
        ok = store.get_range(key, 0, 5) == b"probe"
        store.delete(key)
    except (BatchgenError, OSError) as error:
        return Check(
            "object store",
            ok=False,
            detail=str(error),
            mend="see BATCHGEN_STORE_URL, and the rights of this user there",
        )
    return Check("object store", ok=ok, detail=url, mend="what was written was not read back")


def credentials(settings: Settings) -> Check:
    try:
        found = read_credentials(settings)
    except BatchgenError as error:
        return Check("credentials", ok=False, detail=str(error), mend="as said")
    if found is None and not settings.api_key:
        return Check("credentials", ok=None, detail="none kept yet: `batchgen up` makes the first")
    return Check("credentials", ok=True, detail="a key is kept on this machine")


def api(url: str) -> Check:
    alive = answers_200(f"{url}/healthz")
    ready = alive and answers_200(f"{url}/readyz")
    words = "ready" if ready else "answers, but is not ready" if alive else "does not answer"
    return Check(
        "api", ok=ready, detail=f"{url} {words}", mend="look into logs/api.log, and at the above"
    )
