"""Fit a table to a terminal: fold text between words, then leave out columns, and never cut a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size

from rmqctl.output.cells import Column

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
