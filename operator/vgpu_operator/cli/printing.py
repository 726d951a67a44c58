"""Prints tables: plain and aligned in a pipe, with colours and bars in a terminal.

The text is the same in both. `rich` draws the colours and bars and is imported only for a terminal.
`NO_COLOR` and `TERM=dumb` work as usual.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from vgpu_client.printing import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

COLOURS: Mapping[str, str] = {
    "Allocated": "cyan",
    "InUse": "green",
    "Ready": "green",
    "ok": "green",
    "Pending": "yellow",
    "Cordoned": "yellow",
    "warning": "yellow",
    "Released": "dim",
    "Failed": "red",
    "NotReady": "red",
    "Unhealthy": "red",
    "Unknown": "red",
    "error": "red",
}
"""Colours for cells that consist of one of these words."""
_BAR = 10
_GAP = "   "


@dataclass(frozen=True, slots=True)
class Portion:
    """A cell that shows a fraction.

    Attributes:
        text: The text of the cell.
        part: The fraction, which may exceed 1; None if it is unknown.
    """

    text: str
    part: float | None = None


Cell = str | Portion


@dataclass(slots=True)
class Table:
    """Rows under a header.

    Attributes:
        header: The names of the columns, in capitals.
        rows: The cells of each row, one for each column.
    """

    header: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    def lines(self, *, header: bool = True) -> list[str]:
        """Return the table as lines of plain text."""
        rows = [[_plain(cell) for cell in row] for row in self.rows]
        return aligned([list(self.header), *rows] if header else rows)


def aligned(rows: Sequence[Sequence[str]], *, gap: str = _GAP) -> list[str]:
    """Pad columns to their widest cell plus a gap, without trailing spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


class Printer:
    """A printer of lines and tables.

    Args:
        out: The stream to print to. Colours and bars are used if it is a terminal that supports
            them.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.is_terminal = self.out.isatty() and os.environ.get("TERM") != "dumb"
        self.is_coloured = self.is_terminal and not os.environ.get("NO_COLOR")

    def line(self, text: str = "", *, by: int = 0) -> None:
        """Print a line with an indentation."""
        print(" " * by + printable(text) if text.strip() else "", file=self.out, flush=True)

    def table(self, table: Table, *, header: bool = True, by: int = 0) -> None:
        """Print a table; if it has no rows, only the header."""
        if not self.is_terminal:
            for line in table.lines(header=header):
                print(" " * by + line, file=self.out, flush=True)
            return
        from rich.console import Console
        from rich.padding import Padding

        console = Console(file=self.out, no_color=not self.is_coloured, highlight=False)
        console.print(Padding(rendered(table, header=header), (0, 0, 0, by)), soft_wrap=False)


def rendered(table: Table, *, header: bool = True) -> RichTable:
    """Return the table as a `rich` object."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, show_header=header, pad_edge=False, padding=(0, 3, 0, 0))
    for number, name in enumerate(table.header):
        # Never wrap the first two columns: they contain names that people copy.
        shown.add_column(name, no_wrap=number < 2, overflow="fold", header_style="bold")
    for row in table.rows:
        shown.add_row(*(Text(_with_bar(cell), style=_style(cell)) for cell in row))
    return shown


@contextmanager
def bar(printer: Printer, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress as a bar in a terminal, else as one line per change.

    Args:
        printer: The printer to use.
        what: The plural noun for the things that are counted.
    """
    if printer.is_terminal:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(file=printer.out, no_color=not printer.is_coloured, highlight=False)
        shown = Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), console=console)
        with shown:
            task = shown.add_task(what, total=None)
            yield lambda gone, of: shown.update(task, completed=gone, total=of)
        return
    last: list[tuple[int, int]] = []

    def line(gone: int, of: int) -> None:
        if last[-1:] != [(gone, of)]:
            last.append((gone, of))
            printer.line(f"{gone} of {of} {what} are gone")

    yield line


def words(items: Iterable[str]) -> str:
    """Join items for a cell; `-` if there are none."""
    return ",".join(items) or "-"


def _plain(cell: Cell) -> str:
    return printable(cell if isinstance(cell, str) else cell.text) or "-"


def _with_bar(cell: Cell) -> str:
    text = _plain(cell)
    if isinstance(cell, str) or cell.part is None:
        return text
    full = min(max(round(cell.part * _BAR), 0), _BAR)
    return "█" * full + "░" * (_BAR - full) + " " + text


def _style(cell: Cell) -> str:
    if isinstance(cell, str):
        return COLOURS.get(cell, "")
    if cell.part is None:
        return "dim"
    return "red" if cell.part >= 0.9 else "yellow" if cell.part >= 0.75 else "green"
