"""What goes to standard output: tables on a terminal, tab-separated into a pipe, or JSON."""

import contextlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_DASH = "-"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with a heading. Columns whose name starts with `>` are aligned to the right."""
    names = [column.removeprefix(">") for column in columns]
    texts = [[shown(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for line in [names, *texts]:
            print("\t".join(_one_line(cell) for cell in line))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, (column, name) in enumerate(zip(columns, names, strict=True)):
        table.add_column(
            name,
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            no_wrap=i == 0,  # an id must stay in one piece, to be copied
        )
    for line in texts:
        table.add_row(*(Text(cell) for cell in line))
    _print_rich(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values, one pair a line."""
    if not sys.stdout.isatty():
        for name, value in fields.items():
            print(f"{name}\t{_one_line(shown(value))}")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, Text(shown(value)))
    _print_rich(table)


def note(text: str) -> None:
    """A sentence for the person in front, on standard error; nothing where that has gone."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def shown(value: object) -> str:
    """A value as a cell: numbers grouped, nothing as a dash."""
    match value:
        case None | "":
            return _DASH
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return rounded(value)
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """The text with control characters escaped: what others wrote must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def rounded(value: float) -> str:
    """A measured number with about four significant digits, never in exponent form."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3 if abs(value) >= 1 else 4
    return f"{value:.{digits}f}"


def clock_time(epoch_s: float | None) -> str | None:
    """A server's time in this machine's zone."""
    return None if epoch_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch_s))


def age(epoch_s: float | None) -> str | None:
    """How long ago, in the largest unit that fits."""
    return None if epoch_s is None else ago(time.time() - epoch_s)


def ago(seconds: float) -> str:
    """A time past in one unit."""
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)}{unit} ago"
    return f"{max(0, int(seconds))}s ago"


def span(seconds: float) -> str:
    """A duration in one unit or two: 8s, 3m20s, 2h05m, 4d3h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24}h"


def size(n_bytes: float) -> str:
    """Bytes in the largest decimal unit."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def _print_rich(renderable: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(renderable)


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
