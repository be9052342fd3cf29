"""The log of a broker that goes on writing: what was no record when it was read may be one by the time a record behind it is.

Between two readings a broker may write on for as long as whoever asked for the rows looks at those he has. Brokers write
one record after the other, so what stands in front of a good one does not change any more: it is read once more then.
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

_MOST_HELD: Final = 4  # tables of a window each: a torn tail and the zeros behind it are two


def settled(
    tables: Iterator[FrameTable], is_written: Callable[[], bool], again: Callable[[int, int], Iterator[FrameTable]]
) -> Iterator[FrameTable]:
    """The tables of a log, in log order; of one that is written to, with what is no good record in front of one read once more.

    ``again`` gives the tables of [from, to) as they are now; a row of the log that was read first begins at ``from``, and a
    good record at ``to``. ``is_written`` is asked where something is no good record: if it says no, all that follows is as it is.
    """
    held: list[FrameTable] = []  # what stands behind the last good record, as far as it has been read
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
    """The rows of a table from one on, which stay when the next table is asked for."""
    return replace(select(table, np.arange(len(table)) >= first), window=memoryview(bytes(table.window)))
