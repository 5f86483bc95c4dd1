"""Brings a real stack up and down in the background: `python round_trip.py DATA_DIR`.

Prints the user id, and the status of a request with the kept key.
"""

import os
import sys
from pathlib import Path

import httpx

from batchgen.domain.errors import StackError
from batchgen.local.credentials import read_credentials
from batchgen.local.detached import down, up_detached
from batchgen.settings import Settings


def main(data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir)
    try:
        up_detached(settings, port=0)
    except StackError as error:
        sys.exit(str(error))
    try:
        kept = read_credentials(settings)
        assert kept is not None
        answer = httpx.get(
            f"{kept.api_url}/v1/models", headers={"Authorization": f"Bearer {kept.api_key}"}
        )
        print(os.geteuid(), answer.status_code)
    finally:
        down(settings)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
