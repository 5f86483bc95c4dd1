"""The sole reader of the environment: every `BATCHGEN_*` variable, typed, with its default."""

from functools import cached_property
from pathlib import Path

import platformdirs
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_data_dir() -> Path:
    return Path(platformdirs.user_data_dir("batchgen", appauthor=False))


class Settings(BaseSettings):
    """One process's settings. Durations are seconds, sizes bytes."""

    model_config = SettingsConfigDict(env_prefix="BATCHGEN_", extra="forbid", frozen=True)

    data_dir: Path = Field(default_factory=_default_data_dir)
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
    host_command: str = ""
    """The command that starts an engine host, for an engine in an environment of its own. Empty:
    this environment's Python."""
    model_roots: str = ""
    """Directories, with `:` between them, in which registered models must lie. Empty: anywhere."""
    ready_file: Path | None = None
    """A worker writes its process id here once it is ready; set by `batchgen up`."""

    @cached_property
    def run_dir(self) -> Path:
        """Locks and process ids of this machine's batchgen."""
        return self.data_dir / "run"

    @cached_property
    def log_dir(self) -> Path:
        return self.data_dir / "logs"

    @cached_property
    def store(self) -> str:
        """The object store's URL: the given one, else a directory in the data directory."""
        return self.store_url or (self.data_dir / "objects").absolute().as_uri()
