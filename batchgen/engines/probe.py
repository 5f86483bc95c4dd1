"""Running one suspect alone, for a while."""

from collections.abc import Callable

from batchgen.engines.client import EngineClient
from batchgen.engines.protocol import Cancelled, EngineRequest, Finished, Outputs

_WAIT_S = 0.02


def run_probe(
    client: EngineClient,
    request: EngineRequest,
    steps: int,
    while_waiting: Callable[[], None] | None = None,
) -> Finished | None:
    """Run `request` alone for at least so many of its steps, then drop it.

    The client is loaded and has nothing in flight. Returns the result where the request ended
    within its steps (it is a result like any other), None where it was dropped alive.
    `while_waiting` is called about every 20 ms. Raises HostDied or HostHung: the request crashed
    alone.
    """
    client.submit([request])
    cancelled = False
    while True:
        for event in client.poll(_WAIT_S):
            match event:
                case Outputs(finished=finished):
                    for ended in finished:
                        if ended.id == request.id:
                            return ended
                case Cancelled(ids=ids) if request.id in ids:
                    return None
        if not cancelled:
            crumbs = client.breadcrumbs()
            # Its last step must have been survived, not just begun.
            if request.id in crumbs.live and crumbs.age(request.id) > steps:
                client.cancel([request.id])
                cancelled = True
        if while_waiting is not None:
            while_waiting()
