"""Read the tail of a live log twice.

A broker appends while the caller uses a table, so bytes that were no record on the first read may be one later. Brokers
write records one after the other, so bytes before a complete record no longer change, and are then read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.scan.frames import FrameTable, select, stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_HELD: Final = 4  # tables of a window each; a torn tail and the zeros after it are two


def settled(
    tables: Iterator[FrameTable], is_written: Callable[[], bool], again: Callable[[int, int], Iterator[FrameTable]]
) -> Iterator[FrameTable]:
    """Yield the tables of a log in order. In a live log, other rows before a good record are read again.

    Args:
        tables: the tables of the first read.
        is_written: called at the first row that is no good record; if it returns False, all tables are passed on.
        again: returns the present tables of [from, to); a row of the first read starts at ``from``, a good record at ``to``.
    """
    held: list[FrameTable] = []  # rows after the last good record
    for table in tables:
        if table.is_good and not held:
            yield table
            continue
        if not held and not is_written():
            yield from chain([table], tables)
            return
        is_good = _is_good(table)
        first = 0 if held else int(np.argmin(np.append(is_good, False)))
        last = len(table) - 1 - int(np.argmax(is_good[::-1])) if is_good.any() else -1
        if len(held) == _MOST_HELD:
            yield from chain(held, [table], tables)
            return
        if last >= first:
            yield stretch(table, 0, first)
            start = int(held[0].phy_offset[0] if held else table.phy_offset[first])
            held.clear()
            yield from again(start, int(table.phy_offset[last]))
            yield stretch(table, last, last + 1)
            first = last + 1
        else:
            yield stretch(table, 0, first)
        if first < len(table):
            held.append(_kept(table, first))
    yield from held


def _is_good(table: FrameTable) -> NDArray[np.bool_]:
    is_frame = table.messages | table.of_kind(FrameKind.BLANK)
    return np.asarray(is_frame & table.of_code(FrameCode.OK))


def _kept(table: FrameTable, first: int) -> FrameTable:
    """Return the rows of a table from ``first`` on, as copies that stay valid when the next table is taken."""
    return replace(select(table, np.arange(len(table)) >= first), window=memoryview(bytes(table.window)))
