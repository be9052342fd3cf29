"""Write blocks as plain text or Markdown, laid out by tabulate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import tzinfo
from typing import Final

from rmqctl.output.cells import Column, cell, escape_controls
from rmqctl.output.document import (
    FINDING_COLUMNS,
    Block,
    Drawing,
    Facts,
    FindingRows,
    Findings,
    Page,
    Table,
    Text,
    pages,
)

_HEADING_LINES: Final = {"plain": 1, "github": 2}


class PlainView:
    """Writer of blocks as ``plain`` (aligned columns) or ``github`` (Markdown), long tables page by page."""

    def __init__(self, write: Callable[[str], object], table_format: str, zone: tzinfo) -> None:
        self._write = write
        self._format = table_format
        self._zone = zone
        self._blocks = 0

    def show(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if self._blocks:
                self._write("\n")
            self._blocks += 1
            match block:
                case Facts():
                    self._facts(block)
                case Table():
                    self._table(block)
                case Findings():
                    self._findings(block)
                case Text():
                    self._write(f"{escape_controls(block.text)}\n")
                case Drawing():
                    self._title(block.title)
                    fence = ["```"] if self._format == "github" else []
                    self._write("".join(f"{escape_controls(line)}\n" for line in [*fence, *block.lines, *fence]))

    def _title(self, title: str) -> None:
        if title:
            self._write(
                f"### {escape_controls(title)}\n\n" if self._format == "github" else f"{escape_controls(title)}\n"
            )

    def _facts(self, block: Facts) -> None:
        self._title(block.title)
        columns = [Column.of(key) for key in block.values]
        rows = [
            [column.title(humanised=False), cell(value, column.kind, self._zone)]
            for column, value in zip(columns, block.values.values(), strict=True)
        ]
        self._write(self._tabulate(rows, ["name", "value"] if self._format == "github" else [], [False, False]))

    def _table(self, block: Table) -> None:
        self._title(block.title)
        widths: list[int] = []
        for page in pages(block):
            self._page(page, widths)
        if not widths:
            self._write(f"{block.empty}\n")

    def _page(self, page: Page, widths: list[int]) -> None:
        """Write a page, at least as wide as the pages before it, and update ``widths``. Only the first has headings."""
        headings = [column.title(humanised=False) for column in page.columns]
        rows = [[self._cell(row.get(column.key), column) for column in page.columns] for row in page.rows]
        widths[:] = [
            max(known, *(len(row[i]) for row in rows))
            for i, known in enumerate(widths or [len(heading) for heading in headings])
        ]
        # tabulate has no least width: a first row as wide as the earlier pages is laid out too, then dropped
        ruler = [["x" * width for width in widths]] if page.number else []
        text = self._tabulate(ruler + rows, headings, page.numeric)
        if page.number:
            text = "".join(text.splitlines(keepends=True)[_HEADING_LINES[self._format] + 1 :])
        self._write(text)

    def _findings(self, block: Findings) -> None:
        rows = FindingRows(block.findings)
        self._table(Table(rows, FINDING_COLUMNS, block.title, empty="none"))
        for number, (codes, advice) in enumerate(rows.advice()):
            lead = "\n" if number == 0 or self._format == "github" else ""
            self._write(f"{lead}{codes}: {escape_controls(advice)}\n")

    def _cell(self, value: object, column: Column) -> str:
        text = cell(value, column.kind, self._zone)
        return text.replace("|", "\\|") if self._format == "github" else text or "-"

    def _tabulate(self, rows: Sequence[Sequence[str]], headings: Sequence[str], numeric: Sequence[bool]) -> str:
        from tabulate import tabulate

        sides = ["right" if right else "left" for right in numeric]
        text = tabulate(rows, headings, tablefmt=self._format, colalign=sides, disable_numparse=True)
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())
