"""How far an upload is, on a terminal; small ones are over before anything is shown."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchgen.client.upload import Upload

_SHOW_AFTER_S = 1.0


@contextmanager
def sending(upload: "Upload", *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """A function to be told the bytes sent so far; None where nothing is to be shown."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    started = time.monotonic()
    with Progress(
        TextColumn("uploading"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        expand=True,
        transient=True,
    ) as progress:
        task = progress.add_task("uploading", total=upload.n_bytes, visible=False)

        def sent(n_bytes: int) -> None:
            late = time.monotonic() - started > _SHOW_AFTER_S
            progress.update(task, completed=n_bytes, visible=late)

        yield sent
