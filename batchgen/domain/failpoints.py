"""Named places where a test may have a process killed, as by a power cut: before and after what
must not be half done.

`reach` does nothing, and costs one comparison, unless its point is armed: in the processes of the
service by the setting `failpoint`, which nobody sets but tests.
"""

import os
import signal
from enum import StrEnum

from batchgen.domain.errors import InvalidRequest


class Failpoint(StrEnum):
    """`…_written`: its object is in the store, no row tells of it. `…_uncommitted`: all is done but
    the commit. `…_committed`: nothing that follows the commit is done.
    """

    SUBMIT_UNCOMMITTED = "submit_uncommitted"
    SUBMIT_COMMITTED = "submit_committed"
    INGEST_BEGUN = "ingest_begun"
    INGEST_UNCOMMITTED = "ingest_uncommitted"
    INGEST_COMMITTED = "ingest_committed"
    CLAIM_UNCOMMITTED = "claim_uncommitted"
    CLAIM_COMMITTED = "claim_committed"
    LINE_READ = "line_read"
    CHECKPOINT_BEGUN = "checkpoint_begun"
    CHECKPOINT_WRITTEN = "checkpoint_written"
    CHECKPOINT_UNCOMMITTED = "checkpoint_uncommitted"
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    FINISH_BEGUN = "finish_begun"
    FINISH_WRITTEN = "finish_written"
    FINISH_UNCOMMITTED = "finish_uncommitted"
    FINISH_COMMITTED = "finish_committed"
    FINALIZE_BEGUN = "finalize_begun"
    CUT_WRITTEN = "cut_written"
    CUT_UNCOMMITTED = "cut_uncommitted"
    CUT_COMMITTED = "cut_committed"
    PUBLISH_UNCOMMITTED = "publish_uncommitted"
    PUBLISH_COMMITTED = "publish_committed"
    CANCEL_UNCOMMITTED = "cancel_uncommitted"
    CANCEL_COMMITTED = "cancel_committed"
    RETRY_UNCOMMITTED = "retry_uncommitted"
    RETRY_COMMITTED = "retry_committed"


class _Arm:
    """What is armed in this process."""

    point: Failpoint | None = None


def arm(name: str) -> None:
    """Have this process killed when it reaches the point `name`; empty: never. Raises
    InvalidRequest for a name that is none.
    """
    if name and name not in set(Failpoint):
        raise InvalidRequest(f"'{name}' is no failpoint; known: {', '.join(Failpoint)}")
    _Arm.point = Failpoint(name) if name else None


def reach(point: Failpoint) -> None:
    """The process is at this point."""
    if point is _Arm.point:
        os.kill(os.getpid(), signal.SIGKILL)
