"""The memory that the end of a job needs does not grow with its lines; finalize.py has figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("finalize.py")
# Without bounds it was more than 400 bytes a line; a shard's row is a few bytes a line.
BYTES_A_LINE = 150


@pytest.mark.slow
def test_the_end_of_a_job_needs_no_memory_for_each_line() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--lines", "150000", "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    small, large = json.loads(done.stdout)
    grown_bytes = (large["peak_rss_mb"] - small["peak_rss_mb"]) * 2**20
    assert grown_bytes / (large["lines"] - small["lines"]) < BYTES_A_LINE
