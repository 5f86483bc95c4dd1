"""The generated pages are those of the code."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "reference.py"


def test_the_reference_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
