"""`python -m workers control | beat | device --device NAME --pool NAME`."""

import argparse
import sys

from batchgen.domain.errors import BatchgenError
from batchgen.settings import Settings
from batchgen.telemetry.logs import configure
from workers.app import run_beat, run_control, run_device


def main() -> int:
    """Run one worker; 0 after an orderly stop, 1 with a line on stderr where it cannot start."""
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("control", help="ingest, finalize, sweep")
    roles.add_parser("beat", help="ring the sweep's bell by the clock")
    device = roles.add_parser("device", help="serve one device")
    device.add_argument("--device", default="CPU", help="the engine's name of it: CPU, GPU, GPU.1")
    device.add_argument("--pool", default="default", help="the pool that it belongs to")
    asked = parser.parse_args()
    try:
        settings = Settings.read()
        configure(settings.log_level)
        match asked.role:
            case "control":
                run_control(settings)
            case "beat":
                run_beat(settings)
            case _:
                run_device(settings, asked.device, asked.pool)
    except BatchgenError as error:
        print(f"batchgen worker: {error}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
