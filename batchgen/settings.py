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
    database_url: str = ""
    broker_url: str = ""
    store_url: str = ""
    api_url: str = "http://127.0.0.1:8000"
    api_key: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    log_level: str = "INFO"
    queue_prefix: str = "batchgen"

    shard_lines: int = Field(default=500, ge=1)
    shard_bytes: int = Field(default=8 * 2**20, ge=1)
    max_file_bytes: int = Field(default=16 * 2**30, ge=1)
    max_line_bytes: int = Field(default=8 * 2**20, ge=1)
    max_lines: int = Field(default=10_000_000, ge=1)
    max_reported_faults: int = Field(default=1_000, ge=1)
    max_completion_window_s: int = Field(default=30 * 86_400, ge=60)
    max_output_tokens: int = Field(default=1_000_000, ge=1)

    lease_s: float = Field(default=60.0, gt=0)
    heartbeat_s: float = Field(default=10.0, gt=0)
    checkpoint_s: float = Field(default=2.0, gt=0)
    poll_s: float = Field(default=5.0, gt=0)
    sweep_s: float = Field(default=10.0, gt=0)
    drain_s: float = Field(default=5.0, ge=0)
    step_timeout_s: float = Field(default=120.0, gt=0)
    load_timeout_s: float = Field(default=900.0, gt=0)
    engine_idle_s: float = Field(default=900.0, ge=0)
    engine_switch_s: float = Field(default=60.0, ge=0)
    host_command: str = ""
    model_roots: str = ""
    ready_file: Path | None = None

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
