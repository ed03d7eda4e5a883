"""Aligned text for terminals. Text is never truncated, so that it can be searched."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ..plugins.tools import in_one_line


class Printer:
    """Prints to stdout, with colours if the terminal supports them and NO_COLOR is not set."""

    def __init__(self) -> None:
        self._console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)

    def head(self, text: str) -> None:
        self._console.print(Text(in_one_line(text), style="bold"))

    def line(self, label: str, text: str, *, style: str = "") -> None:
        self._console.print(Text.assemble((label, "dim"), (in_one_line(text), style)))

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
        """Print a table. `styles` contains the style of each row's first cell."""
        shown = [[in_one_line(cell) for cell in row] for row in (heads, *rows)]
        widths = [max(len(row[column]) for row in shown) for column in range(len(heads))]
        for number, row in enumerate(shown):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            style = "dim" if number == 0 else styles[number - 1] if styles else ""
            if not any(row):
                continue
            rest = "dim" if number == 0 else ""
            self._console.print(Text.assemble("  ", (cells[0], style), "  ", ("  ".join(cells[1:]).rstrip(), rest)))
