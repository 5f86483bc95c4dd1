"""Runs a stack whose children are `part.py`: `python small_stack.py DATA_DIR [OPTION…]`.

Options: `--port N` asks for a port, every other word is the kind of a further child.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from batchgen.domain.errors import StackError
from batchgen.local.child import ChildSpec
from batchgen.local.devices import Devices
from batchgen.local.stack import Stack, StoppedEarly, stopped_by_signals
from batchgen.settings import Settings

PART = Path(__file__).with_name("part.py")


def main(data_dir: str, *options: str) -> None:
    kinds = list(options)
    port = None
    if "--port" in kinds:
        at = kinds.index("--port")
        port = int(kinds[at + 1])
        del kinds[at : at + 2]

    def small_children(
        _settings: Settings, devices: Devices, *, api_fd: int, api_url: str
    ) -> Sequence[ChildSpec]:
        python = (sys.executable, str(PART))
        api = ChildSpec(
            "api", (*python, "api", str(api_fd)), ready_url=f"{api_url}/readyz", pass_fds=(api_fd,)
        )
        workers = [
            ChildSpec(f"device-{d.name.lower()}", (*python, "worker")) for d in devices.usable
        ]
        return [api, *workers, *(ChildSpec(kind, (*python, kind)) for kind in kinds)]

    stack = Stack(
        Settings(data_dir=Path(data_dir)),
        port=0 if port is None else port,
        device_names=["CPU"],
        report=lambda text: print(text, flush=True),
        show_key=lambda key: print(f"shown {key}", flush=True),
        children_for=small_children,
        ready_timeout_s=15.0,
    )
    try:
        with stopped_by_signals(stack):
            stack.run()
    except StoppedEarly as error:
        print(error)
    except StackError as error:
        sys.exit(f"refused: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
