"""Prints tables: plain and aligned in a pipe, with colours and bars in a terminal.

A cell is never wrapped, so that names can be copied. Where a table is wider than the terminal, the
bars go first, then the columns that matter least; a line below the table names those. `NO_COLOR`
and `TERM=dumb` work as usual.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from vgpu_client.printing import printable

_DIM, _RED, _GREEN, _YELLOW, _CYAN, _BOLD = "2", "31", "32", "33", "36", "1"
"""Codes of ECMA-48 for the way in which text is shown."""
COLOURS: Mapping[str, str] = {
    "Allocated": _CYAN,
    "InUse": _GREEN,
    "Ready": _GREEN,
    "ok": _GREEN,
    "Pending": _YELLOW,
    "Cordoned": _YELLOW,
    "warning": _YELLOW,
    "Released": _DIM,
    "Failed": _RED,
    "NotReady": _RED,
    "Unhealthy": _RED,
    "Unknown": _RED,
    "error": _RED,
}
"""Colours for cells that consist of one of these words."""
_CODES = re.compile(r"\x1b\[[0-9;]*m")
_BAR = 10
_GAP = "   "
_NARROW_GAP = "  "
"""For a table that does not fit otherwise."""


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
        dispensable: The columns that a narrow terminal may leave out, the least important first.
    """

    header: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    dispensable: Sequence[str] = ()

    def lines(self, *, header: bool = True) -> list[str]:
        """Return the table as lines of plain text."""
        rows = [[_plain(cell) for cell in row] for row in self.rows]
        return aligned([list(self.header), *rows] if header else rows)


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of a table that fits a terminal.

    Attributes:
        columns: The columns that are shown.
        has_bars: True if fractions are drawn as bars, too.
        gap: Separates columns.
    """

    columns: Sequence[str]
    has_bars: bool = False
    gap: str = _GAP


def aligned(rows: Sequence[Sequence[str]], *, gap: str = _GAP) -> list[str]:
    """Pad columns to their widest cell plus a gap, without trailing spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def fitted(table: Table, width: int) -> Layout:
    """Return the form in which most of the table fits into a width.

    A column is left out only if leaving out all that matter less is not enough. If nothing fits,
    all dispensable columns are left out, and the lines run over.
    """
    for has_bars, gap in ((True, _GAP), (False, _GAP), (False, _NARROW_GAP)):
        layout = Layout(table.header, has_bars, gap)
        widths = _widths(table, layout)
        if sum(widths.values()) - len(gap) <= width:
            return layout
    there = [name for name in table.dispensable if name in widths]
    # Counted in binary, with the most important column as the highest digit, the sets of columns
    # come in the order in which we like to leave them out.
    for number in range(2 ** len(there)):
        left_out = {name for digit, name in enumerate(there) if number >> digit & 1}
        columns = [name for name in table.header if name not in left_out]
        if sum(widths[name] for name in columns) - len(gap) <= width:
            break
    return Layout(columns, gap=gap)


def drawn(
    table: Table, layout: Layout, *, header: bool = True, is_coloured: bool = True
) -> list[str]:
    """Return the lines of a table for a terminal."""
    chosen = [number for number, name in enumerate(table.header) if name in layout.columns]
    rows = [[_shown(row[n], layout) for n in chosen] for row in table.rows]
    if header:
        rows.insert(0, [(table.header[n], _BOLD) for n in chosen])
    widths = [max(len(text) for text, _ in column) for column in zip(*rows, strict=True)]
    return [_drawn_row(row, widths, layout.gap, is_coloured=is_coloured) for row in rows]


def _drawn_row(
    cells: Sequence[tuple[str, str]], widths: Sequence[int], gap: str, *, is_coloured: bool
) -> str:
    padded = [
        _coloured(text, style if is_coloured else "") + " " * (width - len(text))
        for (text, style), width in zip(cells, widths, strict=True)
    ]
    return gap.join(padded).rstrip()


def _shown(cell: Cell, layout: Layout) -> tuple[str, str]:
    """Return the text of a cell and its style."""
    return _with_bar(cell, bars=layout.has_bars), _style(cell)


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
        self._layouts: dict[Sequence[str], Layout] = {}

    def line(self, text: str = "", *, by: int = 0) -> None:
        """Print a line with an indentation."""
        self._print([" " * by + printable(text) if text.strip() else ""])

    def paragraph(self, text: str, *, by: int = 0) -> None:
        """Print a sentence with an indentation; in a terminal, on as many lines as it needs."""
        if not self.is_terminal:
            self.line(text, by=by)
            return
        self._print(
            textwrap.wrap(
                printable(text),
                max(terminal_width(), by + 20),
                initial_indent=" " * by,
                subsequent_indent=" " * by,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )

    def table(self, table: Table, *, header: bool = True, is_whole: bool = False) -> None:
        """Print a table; if it has no rows, only the header.

        Args:
            table: The table.
            header: False: the rows continue the last table with the same header.
            is_whole: Print all columns, however wide the terminal is.
        """
        if not self.is_terminal:
            self._print(table.lines(header=header))
            return
        name = tuple(table.header)
        if header or name not in self._layouts:
            everything = Layout(name)
            self._layouts[name] = everything if is_whole else fitted(table, terminal_width())
        layout = self._layouts[name]
        self._print(drawn(table, layout, header=header, is_coloured=self.is_coloured))
        left_out = left_out_of(table, layout)
        if header and left_out:
            self._print([_coloured(left_out, _DIM if self.is_coloured else "")])

    def redraw(self, table: Table, below: Sequence[str], last: int, *, is_whole: bool) -> int:
        """Draw a table and lines below it in place of what was drawn last, in a terminal.

        Args:
            table: The table; what does not fit on the screen is counted only.
            below: The lines below it.
            last: The number of lines on the screen that the last call returned; 0 at first.
            is_whole: Draw all columns, however wide the terminal is.
        """
        size = shutil.get_terminal_size()
        layout = fitted(table, size.columns)
        if is_whole:
            layout = Layout(table.header)
        lines = [*drawn(table, layout, is_coloured=self.is_coloured), *map(printable, below)]
        heights = [-(-max(len(_CODES.sub("", line)), 1) // size.columns) for line in lines]
        shown = 0
        while shown < len(lines) and sum(heights[: shown + 1]) + 2 <= size.lines:
            shown += 1
        hidden = [f"and {len(lines) - shown} more lines"] if shown < len(lines) else []
        back = f"\x1b[{last}A\r\x1b[J" if last else ""
        print(back + "\n".join([*lines[:shown], *hidden]), file=self.out, flush=True)
        return sum(heights[:shown]) + len(hidden)

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            print(line, file=self.out, flush=True)


def left_out_of(table: Table, layout: Layout) -> str:
    """Return a sentence about the columns that are not shown; empty if all are."""
    names = ", ".join(name for name in table.header if name not in layout.columns)
    return f"(columns not shown: {names}; use -o wide)" if names else ""


def terminal_width() -> int:
    """Return the number of columns of the terminal."""
    return shutil.get_terminal_size().columns


def counted(printer: Printer, what: str) -> Callable[[int, int], None]:
    """Return a function that prints progress as a line per change.

    Args:
        printer: The printer to use.
        what: The plural noun for the things that are counted.
    """
    last: list[tuple[int, int]] = []

    def line(gone: int, of: int) -> None:
        if last[-1:] != [(gone, of)]:
            last.append((gone, of))
            printer.line(f"{gone} of {of} {what} are gone")

    return line


def words(items: Iterable[str]) -> str:
    """Join items for a cell; `-` if there are none."""
    return ",".join(items) or "-"


def _widths(table: Table, layout: Layout) -> Mapping[str, int]:
    """Return the width of each column with the gap behind it."""
    return {
        name: len(layout.gap)
        + max([len(name), *(len(_with_bar(row[n], bars=layout.has_bars)) for row in table.rows)])
        for n, name in enumerate(table.header)
    }


def _plain(cell: Cell) -> str:
    return printable(cell if isinstance(cell, str) else cell.text) or "-"


def _with_bar(cell: Cell, *, bars: bool) -> str:
    text = _plain(cell)
    if not bars or isinstance(cell, str) or cell.part is None:
        return text
    full = min(max(round(cell.part * _BAR), 0), _BAR)
    return "█" * full + "░" * (_BAR - full) + " " + text


def _style(cell: Cell) -> str:
    if isinstance(cell, str):
        return COLOURS.get(cell, "")
    if cell.part is None:
        return _DIM
    return _RED if cell.part >= 0.9 else _YELLOW if cell.part >= 0.75 else _GREEN


def _coloured(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text
