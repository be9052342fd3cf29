"""Show blocks on a terminal with Rich."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import zip_longest
from typing import IO, Any, Final, NoReturn

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text as RichText

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

GAP: Final = 2  # spaces between the columns of a table
LONGEST_WORD: Final = 32  # a message id is not folded, a longer word may be
LEAST_CUT: Final = 12  # least width of a column whose text is cut
LEAST_NAME: Final = 14  # least width of a name that may be folded within a word

_PIECE: Final = re.compile(r"[^\s/]*(?:/+|\s+|$)")  # text folds after spaces, and paths after slashes
_HEADING_PIECE: Final = re.compile(r"[^\s_]*(?:_+|\s+|$)")


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of the columns that are shown, with the width of each; the others are left out."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    rigid: frozenset[int]

    @property
    def width(self) -> int:
        return _total(self.widths)

    def holds(self, texts: Sequence[Sequence[str]]) -> bool:
        """Return True if more rows fit without folding a number."""
        return all(
            width_of(row[i]) <= width
            for i, width in zip(self.shown, self.widths, strict=True)
            if i in self.rigid
            for row in texts
        )


@dataclass(frozen=True, slots=True)
class _Need:
    least: int
    widest: int


def fit(
    columns: Sequence[Column], headings: Sequence[str], texts: Sequence[Sequence[str]], rigid: frozenset[int], room: int
) -> Layout | None:
    """Return columns and widths that fit into ``room``; None if even the columns that are never left out do not.

    ``rigid`` columns must not be folded. Columns with the highest ``drop`` are left out first.
    """
    widest = [max(width_of(heading), *(width_of(row[i]) for row in texts)) for i, heading in enumerate(headings)]
    shown = list(range(len(columns)))
    if _total(widest) <= room:
        return Layout(tuple(shown), tuple(widest), rigid)
    needs = [
        _Need(_least(heading, [row[i] for row in texts], columns[i], folds=i not in rigid), widest[i])
        for i, heading in enumerate(headings)
    ]
    while _total([needs[i].least for i in shown]) > room:
        droppable = [i for i in shown if columns[i].drop]
        if not droppable:
            return None
        shown.remove(max(droppable, key=lambda i: (columns[i].drop, i)))
    return Layout(tuple(shown), tuple(_shared([needs[i] for i in shown], room)), rigid)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _least(heading: str, texts: Sequence[str], column: Column, *, folds: bool) -> int:
    pieces = _HEADING_PIECE.findall(heading)
    if column.cut:
        return max(LEAST_CUT, *map(width_of, pieces))
    if folds:
        longest = max(map(word_width, set(texts)), default=0)
        return max(min(longest, LEAST_NAME if column.folds_words else LONGEST_WORD), *map(width_of, pieces))
    return max(*(width_of(text) for text in texts), *map(width_of, pieces))


def _shared(needs: Sequence[_Need], room: int) -> list[int]:
    """Return widths that share the spare room equally, serving the columns that lack least first."""
    widths = [need.least for need in needs]
    spare = room - _total(widths)
    lacking = sorted(range(len(needs)), key=lambda i: needs[i].widest - needs[i].least)
    for waiting, i in zip(range(len(lacking), 0, -1), lacking, strict=True):
        more = min(needs[i].widest - needs[i].least, spare // waiting)
        widths[i] += more
        spare -= more
    return widths


def width_of(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fold(text: str, width: int, *, heading: bool = False) -> list[str]:
    """Fold a text into lines of at most ``width``, after spaces and slashes; inside a word only if it is longer."""
    if width_of(text) <= width:
        return [text]
    lines, line = [], ""
    for piece in (_HEADING_PIECE if heading else _PIECE).findall(text):
        if line and width_of(line) + width_of(piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        if width_of(line.rstrip()) > width:
            spaces = line[len(line.rstrip()) :]
            *full, line = chop_cells(line.rstrip(), width)
            lines += full
            line += spaces
    return [*lines, line.rstrip()] if line.rstrip() or not lines else lines


def cut(text: str, width: int) -> str:
    """Return the start of a text, with an ellipsis if there is more."""
    return text if width_of(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def word_width(text: str) -> int:
    """Return the width of the longest part of a text that is not to be folded."""
    return max(width_of(piece.rstrip()) for piece in _PIECE.findall(text))


_SEVERITY_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_TITLE_STYLE: Final = "bold"
_ALL_SHOWN: Final = "-o plain shows all"


class QuietConsole(Console):
    """A console that leaves a broken pipe to the caller instead of ending the process with 1."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class RichView:
    """Writer of blocks with Rich. Values are text, never markup. It lays out tables itself: Rich may cut a number."""

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
                    self._title(block.title)
                    self._pairs([(Column.of(key), value) for key, value in block.values.items()])
                case Table():
                    self._table(block)
                case Findings():
                    self._findings(block)
                case Text():
                    self._console.print(RichText(escape_controls(block.text), style=block.style))
                case Drawing():
                    self._title(block.title)
                    self._print(RichText("".join(f"{escape_controls(line)}\n" for line in block.lines)))

    def _title(self, title: str) -> None:
        if title:
            self._console.print(RichText(escape_controls(title), style=_TITLE_STYLE))

    def _pairs(self, pairs: Sequence[tuple[Column, Any]]) -> None:
        """Print names with their values, one pair below the other."""
        names = [column.title(humanised=True) for column, _ in pairs]
        margin = max(map(width_of, names), default=0) + GAP
        width = self._console.width
        text = RichText()
        for name, (column, value) in zip(names, pairs, strict=True):
            shown = self._cell(value, column)
            same_line = margin + word_width(shown) <= width or GAP + word_width(shown) > width
            lead = " " * (margin if same_line else GAP)
            text.append(name, "cyan").append("" if not shown else lead[width_of(name) :] if same_line else f"\n{lead}")
            lines = fold(shown, max(width - len(lead), 1))
            text.append(f"\n{lead}".join(lines), _style(column, shown)).append("\n")
        self._print(text)

    def _table(self, block: Table) -> None:
        self._title(block.title)
        layout: Layout | None = None
        page: Page | None = None
        for page in pages(block):
            texts = [[self._cell(row.get(column.key), column) for column in page.columns] for row in page.rows]
            if page.number == 0 or (layout is not None and not layout.holds(texts)):
                layout = self._layout(page, texts)
            if layout is None:
                self._records(page)
            else:
                self._print(_lines(page, layout, texts))
        if page is None:
            self._console.print(RichText(block.empty, style="dim"))
        elif layout is not None and len(layout.shown) < len(page.columns):
            missing = [c.title(humanised=True) for i, c in enumerate(page.columns) if i not in layout.shown]
            note = f"left out for want of room: {', '.join(missing)} ({_ALL_SHOWN})"
            self._console.print(RichText(note, style="dim"))

    def _layout(self, page: Page, texts: Sequence[Sequence[str]]) -> Layout | None:
        """Fit the columns from this page on and print their headings; return None if rows are shown as records instead."""
        headings = [column.title(humanised=True) for column in page.columns]
        rigid = frozenset(
            i
            for i, (column, numeric) in enumerate(zip(page.columns, page.numeric, strict=True))
            if numeric or column.kind != "text"
        )
        layout = fit(page.columns, headings, texts, rigid, self._console.width)
        if layout is not None:
            self._print(_heading(page, layout, headings, rule="-" if self._console.options.ascii_only else "─"))
        return layout

    def _records(self, page: Page) -> None:
        """Print rows as records, each value with its column's name."""
        for number, row in enumerate(page.rows):
            if number or page.number:
                self._console.print()
            self._pairs([(column, row.get(column.key)) for column in page.columns])

    def _findings(self, block: Findings) -> None:
        rows = FindingRows(block.findings)
        self._table(Table(rows, FINDING_COLUMNS, block.title, empty="none"))
        if advised := rows.advice():
            margin = max(width_of(codes) for codes, _ in advised) + GAP
            room = max(self._console.width - margin, 1)
            text = RichText("\n")
            for codes, advice in advised:
                text.append(codes, _TITLE_STYLE).append(" " * (margin - width_of(codes)))
                text.append(f"\n{' ' * margin}".join(fold(escape_controls(advice), room))).append("\n")
            self._print(text)

    def _cell(self, value: Any, column: Column) -> str:
        return cell(value, column.kind, self._zone, humanised=True)

    def _print(self, text: RichText) -> None:
        """Print text whose lines are already folded."""
        self._console.print(text, end="", soft_wrap=True)


def _style(column: Column, text: str) -> str:
    return _SEVERITY_STYLES.get(text, "") if column.kind == "severity" else ""


def _heading(page: Page, layout: Layout, headings: Sequence[str], rule: str) -> RichText:
    cells = [fold(headings[i], width, heading=True) for i, width in zip(layout.shown, layout.widths, strict=True)]
    height = max(map(len, cells))
    text = RichText()
    for words in zip(*([""] * (height - len(lines_of_cell)) + lines_of_cell for lines_of_cell in cells), strict=True):
        text.append(_line(page, layout, words), _TITLE_STYLE).append("\n")
    return text.append(rule * layout.width + "\n")


def _lines(page: Page, layout: Layout, texts: Sequence[Sequence[str]]) -> RichText:
    """Return the rows of a page as text, with severities coloured."""
    coloured = [n for n, i in enumerate(layout.shown) if page.columns[i].kind == "severity"]
    lines: list[str] = []
    spans: list[tuple[str, int, int]] = []
    length = 0
    for row in texts:
        cells = [
            [cut(row[i], width)] if page.columns[i].cut else fold(row[i], width)
            for i, width in zip(layout.shown, layout.widths, strict=True)
        ]
        first = length
        for words in zip_longest(*cells, fillvalue=""):
            line = _line(page, layout, words)
            lines.append(line)
            length += len(line) + 1
        for n in coloured:
            start = first + len(_line(page, layout, [lines_of_cell[0] for lines_of_cell in cells[:n]], padded=True))
            spans.append((_style(page.columns[layout.shown[n]], cells[n][0]), start, start + len(cells[n][0])))
    text = RichText("\n".join([*lines, ""]))
    for style, start, end in spans:
        text.stylize(style, start, end)
    return text


def _line(page: Page, layout: Layout, words: Sequence[str], *, padded: bool = False) -> str:
    """Return one line of a table, numbers flush right; with ``padded``, it ends with the gap before the next column."""
    parts = []
    for i, width, word in zip(layout.shown, layout.widths, words, strict=False):
        space = " " * (width - width_of(word))
        parts.append(space + word if page.numeric[i] else word + space)
    line = (" " * GAP).join(parts)
    return line + " " * GAP * bool(parts) if padded else line.rstrip()
