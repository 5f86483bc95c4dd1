"""The database and the broker of a stack: embedded ones, or those that the settings name."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from batchgen.local import logs
from batchgen.local.broker_check import broker_check
from batchgen.local.credentials import credentials_path
from batchgen.local.phases import Phases
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.local.supervise import Part, ServerPart
from batchgen.local.valkey import EmbeddedValkey
from batchgen.settings import Settings


@dataclass(frozen=True, slots=True)
class ReadyDatabase:
    """A database with the schema of this version; `new_key` where this machine needed one."""

    url: str
    new_key: str | None


@dataclass(frozen=True, slots=True)
class ReadyBroker:
    """Where the doorbells are; `warnings` where an outside one does not answer, or throws away."""

    url: str
    warnings: tuple[str, ...] = ()


class Servers:
    """Started side by side, stopped broker first. An outside server is never stopped."""

    def __init__(self, settings: Settings, phases: Phases):
        self._settings = settings
        self._phases = phases
        self._postgres_log = settings.log_dir / "postgres.log"
        self._valkey_log = settings.log_dir / "valkey.log"
        self._postgres = (
            None
            if settings.database_url
            else EmbeddedPostgres(settings.data_dir / "postgres", log_path=self._postgres_log)
        )
        self._valkey = (
            None
            if settings.broker_url
            else EmbeddedValkey(settings.data_dir / "valkey", log_path=self._valkey_log)
        )

    def start(
        self, executor: ThreadPoolExecutor
    ) -> "tuple[Future[ReadyDatabase], Future[ReadyBroker]]":
        """Begin to start both; each is then ready, or raises StackError."""
        return executor.submit(self._bring_database), executor.submit(self._bring_broker)

    def _bring_database(self) -> ReadyDatabase:
        if self._postgres is None:
            url = self._settings.database_url
        else:
            logs.rotate(self._postgres_log)
            with self._phases.measure("postgres"):
                self._postgres.start()
            url = self._postgres.url
        lost = self._postgres is not None and not credentials_path(self._settings).exists()
        with self._phases.measure("schema"):
            # Alembic and SQLAlchemy: half a second that only a start should cost.
            from batchgen.local.schema import prepare  # noqa: PLC0415

            return ReadyDatabase(url=url, new_key=prepare(url, replace_lost_key=lost))

    def _bring_broker(self) -> ReadyBroker:
        if self._valkey is None:
            url = self._settings.broker_url
            found = broker_check(url)
            warnings = () if found.ok else (f"the broker {found.detail}: {found.mend}",)
            return ReadyBroker(url, warnings)
        logs.rotate(self._valkey_log)
        with self._phases.measure("valkey"):
            self._valkey.start()
        return ReadyBroker(self._valkey.url)

    def parts(self) -> Sequence[Part]:
        """The embedded servers, to be kept alive."""
        found: list[Part] = []
        if self._postgres is not None:
            found.append(ServerPart("postgres", self._postgres, self._postgres_log))
        if self._valkey is not None:
            found.append(ServerPart("valkey", self._valkey, self._valkey_log))
        return found

    def stop(self) -> None:
        for server in (self._valkey, self._postgres):
            if server is not None:
                server.stop()
