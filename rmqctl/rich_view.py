"""Blocks as Rich shows them on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo
from typing import IO, Any, Final, NoReturn

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from rmqctl.blocks import FINDING_COLUMNS, Block, Facts, FindingRows, Findings, Page, Table, Text, pages
from rmqctl.cells import Column, cell, escape_controls

_SEVERITY_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_TITLE_STYLE: Final = "bold"
_PADDING: Final = 2  # columns of a table stand this far apart


class QuietConsole(Console):
    """A console that leaves a broken pipe to the caller instead of ending the process with 1."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class RichView:
    """Writes blocks with Rich. Values are text, never markup."""

    def __init__(self, file: IO[str], zone: tzinfo, *, color: bool, width: int | None) -> None:
        self._console = QuietConsole(
            file=file, no_color=not color or None, highlight=False, markup=False, emoji=False, width=width
        )
        self._zone = zone
        self._blocks = 0

    def show(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if self._blocks:
                self._console.print()
            self._blocks += 1
            match block:
                case Facts():
                    self._facts(block)
                case Table():
                    self._table(block)
                case Findings():
                    self._findings(block)
                case Text():
                    self._console.print(RichText(escape_controls(block.text), style=block.style))

    def _title(self, title: str) -> None:
        if title:
            self._console.print(RichText(escape_controls(title), style=_TITLE_STYLE))

    def _facts(self, block: Facts) -> None:
        self._title(block.title)
        grid = RichTable.grid(padding=(0, _PADDING))
        grid.add_column(style="cyan", no_wrap=True)
        grid.add_column(overflow="fold")
        for key, value in block.values.items():
            column = Column.of(key)
            grid.add_row(RichText(column.title(humanised=True)), self._cell(value, column))
        self._console.print(grid)

    def _table(self, block: Table) -> None:
        self._title(block.title)
        widths: list[int] = []
        for page in pages(block):
            self._page(page, widths)
        if not widths:
            self._console.print(RichText(block.empty, style="dim"))

    def _page(self, page: Page, widths: list[int]) -> None:
        """One page; those behind the first have no headings and are at least as wide."""
        texts = [[self._cell(row.get(column.key), column) for column in page.columns] for row in page.rows]
        headings = [column.title(humanised=True) for column in page.columns]
        least = widths or [cell_len(heading) for heading in headings]
        widths[:] = [max(known, *(cell_len(row[i].plain) for row in texts)) for i, known in enumerate(least)]
        fits = sum(widths) + _PADDING * len(widths) <= self._console.width
        table = RichTable(
            box=box.SIMPLE_HEAD, show_header=page.number == 0, show_edge=False, pad_edge=False, padding=(0, 1)
        )
        for heading, width, numeric in zip(headings, widths, page.numeric, strict=True):
            table.add_column(
                RichText(heading),
                justify="right" if numeric else "left",
                overflow="fold",
                min_width=width if fits else None,
                header_style=_TITLE_STYLE,
            )
        for row in texts:
            table.add_row(*row)
        self._console.print(table)

    def _findings(self, block: Findings) -> None:
        rows = FindingRows(block.findings)
        self._table(Table(rows, FINDING_COLUMNS, block.title, empty="none"))
        if advised := rows.advice():
            self._console.print()
            grid = RichTable.grid(padding=(0, _PADDING))
            for codes, advice in advised:
                grid.add_row(RichText(codes, style=_TITLE_STYLE), RichText(escape_controls(advice)))
            self._console.print(grid)

    def _cell(self, value: Any, column: Column) -> RichText:
        text = cell(value, column.kind, self._zone, humanised=True)
        return RichText(text, style=_SEVERITY_STYLES.get(text, "") if column.kind == "severity" else "")
