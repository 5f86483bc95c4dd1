"""The sole reader of the environment: every `BATCHGEN_*` variable, typed, with its default."""

import difflib
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import platformdirs
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from batchgen.domain.errors import InvalidRequest, UnknownOption

_PREFIX = "BATCHGEN_"
# docker-compose.yml reads these for itself; whoever uses it may well have exported them.
_OF_COMPOSE = frozenset(
    {"BATCHGEN_PUBLISH", "BATCHGEN_POSTGRES_PASSWORD", "BATCHGEN_VALKEY_PASSWORD"}
)


def default_data_dir() -> Path:
    """The platform's directory for user data."""
    return Path(platformdirs.user_data_dir("batchgen", appauthor=False))


class Settings(BaseSettings):
    """One process's settings. Durations are seconds, sizes bytes."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    data_dir: Path = Field(default_factory=default_data_dir)
    """Where this machine keeps everything: embedded servers, objects, logs, credentials. Default:
    the platform's directory for user data."""
    database_url: str = ""
    """Postgres, as `postgresql+psycopg://…`. Empty: an embedded one in the data directory."""
    broker_url: str = ""
    """Redis or Valkey. Empty: an embedded Valkey, or none for a worker that is started alone."""
    store_url: str = ""
    """Where objects lie: `file://`, `s3://`, `gs://` or `az://`. Empty: a directory in the data
    directory."""
    api_url: str = "http://127.0.0.1:8000"
    """Where the command line finds the API. Default: the stack that is up on the data directory,
    else this."""
    api_key: str = ""
    """The key that the command line presents. Empty: the one that `batchgen up` keeps in the data
    directory."""
    host: str = "127.0.0.1"
    """The address that the API of `batchgen up` listens on."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """Its port; where it is set it must be free, the default is replaced by a free one."""
    log_level: str = "INFO"
    """From this level on events are logged."""
    queue_prefix: str = "batchgen"
    """Begins the name of every queue, so that several services can share a broker."""

    shard_lines: int = Field(default=500, ge=1)
    """At most so many request lines are leased to a worker as one shard."""
    shard_bytes: int = Field(default=8 * 2**20, ge=1)
    """At most so many bytes of input are one shard, unless a single line has more."""
    max_file_bytes: int = Field(default=16 * 2**30, ge=1)
    """The largest upload, counted uncompressed."""
    max_line_bytes: int = Field(default=8 * 2**20, ge=1)
    """The longest line of an input."""
    max_lines: int = Field(default=10_000_000, ge=1)
    """The most request lines in an input."""
    max_reported_faults: int = Field(default=1_000, ge=1)
    """So many faults of an input are reported, then its validation stops."""
    max_completion_window_s: int = Field(default=30 * 86_400, ge=60)
    """The longest completion window that a job may ask for."""
    max_output_tokens: int = Field(default=1_000_000, ge=1)
    """The most tokens that a request may ask for."""

    lease_s: float = Field(default=60.0, gt=0)
    """A shard whose holder has not been heard of for so long goes to another worker."""
    heartbeat_s: float = Field(default=10.0, gt=0)
    """A worker renews its leases this often."""
    checkpoint_s: float = Field(default=2.0, gt=0)
    """A worker writes down what it has finished this often."""
    poll_s: float = Field(default=5.0, gt=0)
    """A worker looks for work this often, whether or not its doorbell rang."""
    sweep_s: float = Field(default=10.0, gt=0)
    """Expired leases, due expiries and lost doorbells are looked for this often."""
    lookahead_lines: int = Field(default=1_000, ge=0)
    """A worker reads so many lines ahead of its engine, of the next shards too, to put them in
    order: those together that begin alike, long ones early. More of them find more that begins
    alike, and wait longer for their turn; 0 reads no line before the engine asks for it."""
    lookahead_bytes: int = Field(default=64 * 2**20, ge=0)
    """The most memory that lines read ahead may take in a worker, by a rough count."""
    drain_s: float = Field(default=5.0, ge=0)
    """At SIGTERM a worker lets requests in flight go on for so long, then gives them back."""
    step_timeout_s: float = Field(default=120.0, gt=0)
    """An engine without progress for so long is restarted."""
    load_timeout_s: float = Field(default=900.0, gt=0)
    """An engine that has not loaded its model after so long is given up."""
    engine_idle_s: float = Field(default=900.0, ge=0)
    """A loaded engine without work for so long is unloaded."""
    engine_switch_s: float = Field(default=60.0, ge=0)
    """A session keeps to jobs of the engine that it has loaded for so long, then takes any."""
    cache_dir: Path | None = None
    """Compiled models are kept here, for hosts that mount it together, too. It must exist. Default:
    cache/openvino in the data directory."""
    cache_wait_s: float = Field(default=600.0, ge=0)
    """While another worker compiles the same model a load waits for so long, then goes on without
    the cache."""
    cache_max_bytes: int = Field(default=50 * 2**30, ge=0)
    """Beyond this size of a cache directory what was not used for longest is removed. 0: no
    limit."""
    host_command: str = ""
    """The command that starts an engine host, for an engine in an environment of its own. Empty:
    this environment's Python."""
    model_roots: str = ""
    """Directories, with `:` between them, in which registered models must lie. Empty: anywhere."""
    failpoint: str = ""
    """For tests of crashes only: the point at which a worker is to die (domain/failpoints.py)."""
    ready_file: Path | None = None
    """A worker writes its process id here once it is ready; set by `batchgen up`."""

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **given: Any) -> Self:
        """The environment's settings with the `given` ones over them.

        Raises UnknownOption for a `BATCHGEN_*` variable that is no setting, and InvalidRequest for
        a value that cannot be one: both name the variable.
        """
        _refuse_unknown(os.environ if environment is None else environment)
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors()[0]
            name = _variable("_".join(map(str, first["loc"])))
            reason = first["msg"].removeprefix("Value error, ")
            raise InvalidRequest(f"{name}={first['input']}: {reason}", param=name) from error

    @field_validator("data_dir", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        # An empty path would be the working directory, wherever that happens to be.
        if value == "":
            raise ValueError("names no directory: give one, or unset it for the default")
        return value

    @cached_property
    def run_dir(self) -> Path:
        """Locks and process ids of this machine's batchgen."""
        return self.data_dir / "run"

    @cached_property
    def log_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def cache_root(self) -> Path:
        """The directory of compiled models."""
        return self.cache_dir or self.data_dir / "cache" / "openvino"

    @cached_property
    def store(self) -> str:
        """The object store's URL: the given one, else a directory in the data directory."""
        return self.store_url or (self.data_dir / "objects").absolute().as_uri()


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raises UnknownOption with the nearest setting: a misspelt one would be no setting at all."""
    known = {_variable(name) for name in Settings.model_fields}
    for name in environment:
        if not name.upper().startswith(_PREFIX) or name.upper() in known | _OF_COMPOSE:
            continue
        near = difflib.get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.8)
        mend = (
            f"did you mean {near[0]}?"
            if near
            else "unset it (docs/reference/settings.md lists all)"
        )
        raise UnknownOption(f"{name} is no setting of batchgen: {mend}", param=name)


def _variable(setting: str) -> str:
    return f"{_PREFIX}{setting}".upper()
