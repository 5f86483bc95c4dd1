"""The live progress bar of a terminal."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from batchgen.cli.progress import n_ended, take, words_of
from batchgen.cli.rates import Rate, Rates


class Bar:
    """State, bar, counts, failures, rate and ETA on one line, which stays when it is closed."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._progress = _OneLine(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            _Counts(table_column=Column(no_wrap=True, justify="right")),
            _Speed(self._rates, table_column=Column(no_wrap=True)),
            console=Console(stderr=True, highlight=False),
            expand=True,
            refresh_per_second=5,
        )
        self._task = self._progress.add_task("waiting", total=None, failed=0, open=0)

    def show(self, progress: Mapping[str, Any], whole: Rate | None = None, /) -> None:
        counts = progress["counts"]
        take(self._rates, time.monotonic(), progress, whole)
        self._progress.update(
            self._task,
            description=str(progress["state"]),
            total=counts["total"] or None,
            completed=n_ended(counts),
            failed=counts["failed"],
            open=counts["open"],
        )

    def say(self, text: str) -> None:
        self._progress.console.print(Text(text))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # after a hang-up there is no terminal to restore
            self._progress.stop()


class _OneLine(Progress):
    def get_renderables(self) -> Iterable[RenderableType]:
        return map(_Narrower, super().get_renderables())


class _Narrower:
    """Leaves room for the ^C that a terminal echoes: it would break a line of full width in two."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._inner, options.update(width=options.max_width - 3))


class _Counts(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        text = Text(f"{int(task.completed):,}/{int(task.total):,}")
        if task.fields["failed"]:
            text.append(f"  {task.fields['failed']:,} failed", style="red")
        return text


class _Speed(ProgressColumn):
    def __init__(self, rates: Rates, table_column: Column) -> None:
        self._rates = rates
        super().__init__(table_column=table_column)

    def render(self, task: Task) -> Text:
        words = words_of(self._rates, time.monotonic(), task.description, task.fields["open"])
        return Text("  ".join(words), style="cyan")
