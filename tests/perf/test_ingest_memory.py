"""The memory of ingest does not grow with the file; its speed is for ingest.py to measure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("ingest.py")


@pytest.mark.slow
def test_no_process_needs_200_mb_for_a_large_file() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--lines", "150000", "--repeats", "1", "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    peaks = {row["way"]: row["peak_rss_mb"] for row in json.loads(done.stdout)}
    assert set(peaks) == {"split", "scan", "ingest", "upload"}
    assert all(peak < 200 for peak in peaks.values()), peaks
