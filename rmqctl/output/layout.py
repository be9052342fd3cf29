"""How a table fits a terminal: text is folded between words, then columns are left out, and no number is ever cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size

from rmqctl.output.cells import Column

GAP: Final = 2  # columns of a table stand this far apart
LONGEST_WORD: Final = 32  # an id of a message is not folded, a longer word may be
LEAST_CUT: Final = 12  # so much of a text that is cut is worth a column
LEAST_NAME: Final = 14  # a name that may be folded within a word is given this many columns

_PIECE: Final = re.compile(r"[^\s/]*(?:/+|\s+|$)")  # text folds behind spaces, and paths behind their slashes
_HEADING_PIECE: Final = re.compile(r"[^\s_]*(?:_+|\s+|$)")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table that are shown, by their number, with the width of each; the others are left out."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    rigid: frozenset[int]

    @property
    def width(self) -> int:
        return _total(self.widths)

    def holds(self, texts: Sequence[Sequence[str]]) -> bool:
        """Whether further rows fit without folding a number."""
        return all(
            width_of(row[i]) <= width
            for i, width in zip(self.shown, self.widths, strict=True)
            if i in self.rigid
            for row in texts
        )


@dataclass(frozen=True, slots=True)
class _Need:
    least: int
    most: int


def fit(
    columns: Sequence[Column], headings: Sequence[str], texts: Sequence[Sequence[str]], rigid: frozenset[int], room: int
) -> Layout | None:
    """Columns and widths that fit into ``room``; None where even the columns that are never left out do not.

    ``rigid`` columns hold what must not be folded. Columns with the highest ``drop`` are left out first.
    """
    most = [max(width_of(heading), *(width_of(row[i]) for row in texts)) for i, heading in enumerate(headings)]
    shown = list(range(len(columns)))
    if _total(most) <= room:
        return Layout(tuple(shown), tuple(most), rigid)
    needs = [
        _Need(_least(heading, [row[i] for row in texts], columns[i], folds=i not in rigid), most[i])
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
    """What is left of the room goes to the columns that lack least first, in equal shares."""
    widths = [need.least for need in needs]
    left = room - _total(widths)
    lacking = sorted(range(len(needs)), key=lambda i: needs[i].most - needs[i].least)
    for waiting, i in zip(range(len(lacking), 0, -1), lacking, strict=True):
        more = min(needs[i].most - needs[i].least, left // waiting)
        widths[i] += more
        left -= more
    return widths


def width_of(text: str) -> int:
    """Columns of a terminal that a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fold(text: str, width: int, *, heading: bool = False) -> list[str]:
    """A text in lines of at most ``width``, folded behind spaces and slashes, and inside a word only where it is longer."""
    if width_of(text) <= width:
        return [text]
    lines, line = [], ""
    for piece in (_HEADING_PIECE if heading else _PIECE).findall(text):
        if line and width_of(line) + width_of(piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        if width_of(line.rstrip()) > width:
            behind = line[len(line.rstrip()) :]
            *full, line = chop_cells(line.rstrip(), width)
            lines += full
            line += behind
    return [*lines, line.rstrip()] if line.rstrip() or not lines else lines


def cut(text: str, width: int) -> str:
    """The begin of a text, and three dots in one where there is more."""
    return text if width_of(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def word_width(text: str) -> int:
    """The width of the longest part of a text that is not to be folded."""
    return max(width_of(piece.rstrip()) for piece in _PIECE.findall(text))
