"""Runs the real `batchgen` program, as a person or a script would."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("batchgen")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Shell:
    """A person's shell: `environment` is all that it has of batchgen's variables."""

    data_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str | Path, stdin: bytes = b"", timeout_s: float = 60) -> Done:
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=self.variables(),
            timeout=timeout_s,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str | Path, **how: Any) -> subprocess.Popen[bytes]:
        """Begin a command and leave it running."""
        return subprocess.Popen([PROGRAM, *map(str, arguments)], env=self.variables(), **how)

    def with_(self, **environment: str) -> "Shell":
        return Shell(self.data_dir, {**self.environment, **environment})

    def variables(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("BATCHGEN_")}
        return {
            **inherited,
            "BATCHGEN_DATA_DIR": str(self.data_dir),
            "COLUMNS": "100",
            "OMP_NUM_THREADS": "1",
            **self.environment,
        }
