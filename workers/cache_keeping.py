"""After a load: what it compiled goes into the entry, and `applied` says what the cache did."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import structlog

from batchgen.domain.caches import CacheState
from batchgen.domain.errors import LostLease, Unavailable
from batchgen.domain.ids import LeaseToken
from batchgen.engines.protocol import Applied
from batchgen.storage import caches
from batchgen.storage.cache_directory import EntryNote
from workers.cache_grants import Grant, Placed, in_words, set_aside
from workers.cache_leases import CacheLeases, Tick

log = structlog.get_logger(__name__)


def settle(leases: CacheLeases, grant: Grant, applied: Applied, tick: Tick) -> Applied:
    """Keep what the load has written, give its lease back; returns `applied` with the cache's
    part. What cannot be kept is no failure of the load.
    """
    note, size = grant.note, None
    told: dict[str, Any] = {"cache_dir": None, "cache_namespace": None}
    if isinstance(grant, Placed):
        name = grant.identity.namespace
        told = {"cache_dir": str(grant.directory.path / name), "cache_namespace": name}
        try:
            tick = leases.renewing(grant.token, tick)
            note = _keep(leases, grant, tick, compiled=applied.cache_state == "cold") or note
            entry = grant.directory.read(name)
            size = None if entry is None else entry.size
        except LostLease:
            note = "not kept: another worker took over meanwhile"
        except (Unavailable, OSError, ValueError) as error:
            note = f"not kept: {in_words(error)}"
    log.log(
        logging.INFO if note is None else logging.WARNING,
        "model_loaded",
        cache=told["cache_namespace"],
        state=applied.cache_state,
        size=size,
        reason=note,
    )
    config = applied.config | told | {"cache_note": note}
    return msgspec.structs.replace(applied, config=config, cache_bytes=size)


def _keep(leases: CacheLeases, grant: Placed, tick: Tick, *, compiled: bool) -> str | None:
    """Returns what there is to say about it."""
    written = grant.directory.written(grant.own)
    if not written and grant.token is None:
        return None  # all came from the cache
    if not written and grant.entry is None:
        leases.release(grant.token)
        return "nothing was kept: " + grant.directory.why_nothing(grant.own)
    token = grant.token or leases.lease(grant.key)
    if token is None:
        return "not kept: another worker writes the same entry"
    found = set() if grant.entry is None else set(grant.entry.files)
    try:
        if grant.warm and compiled and found & {file.name for file in written}:
            return _reject(leases, grant, token)
        return _add(leases, grant, token, written, tick)
    except BaseException:
        leases.release(token)
        raise


def _add(
    leases: CacheLeases, grant: Placed, token: LeaseToken, written: list[Path], tick: Tick
) -> str | None:
    name, identity = grant.identity.namespace, grant.identity
    kept = grant.directory.checked(written, tick)
    if grant.damage is not None:
        set_aside(leases, grant.directory, name, token, grant.damage)
    with leases.tx() as tx:
        # Held to the end: no other writer comes between these files.
        caches.hold(tx, token)
        before = grant.directory.read(name) or EntryNote(
            namespace=name,
            identity=msgspec.to_builtins(identity),
            model_path=grant.spec.path,
        )
        note = msgspec.structs.replace(
            before,
            files={**before.files, **kept},
            variants=sorted({*before.variants, identity.variant}),
        )
        grant.directory.keep(name, note, grant.own, kept)
        caches.describe(
            tx,
            token,
            state=CacheState.USABLE,
            reason=None,
            size=note.size,
            n_files=len(note.files),
        )
    if grant.damage is None:
        return None
    return f"the engine loaded only without the entry, which is set aside: {grant.damage}"


def _reject(leases: CacheLeases, grant: Placed, token: LeaseToken) -> str:
    """The runtime has written anew what it found: it would do so at every load."""
    version = grant.identity.libraries.get("openvino", "").partition("-")[0]
    reason = f"OpenVINO {version} compiled the model anew although it was kept"
    with leases.tx() as tx:
        caches.hold(tx, token)
        if grant.entry is not None:
            grant.directory.keep_nothing(grant.identity.namespace, grant.entry, reason)
        caches.describe(tx, token, state=CacheState.REJECTED, reason=reason, size=0, n_files=0)
    return f"of no use: {reason}"
