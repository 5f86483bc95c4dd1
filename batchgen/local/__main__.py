"""The background process of a stack: `python -m batchgen.local`, started by `up_detached`."""

import argparse
import sys

from batchgen.domain.errors import BatchgenError
from batchgen.local.stack import up
from batchgen.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m batchgen.local", description=__doc__)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--device", action="append")
    options = parser.parse_args()
    try:
        up(
            Settings.read(),
            host=options.host,
            port=options.port,
            device_names=options.device,
            report=lambda text: print(text, flush=True),  # noqa: T201 (its output is its log)
        )
    except BatchgenError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
