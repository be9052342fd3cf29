"""Which records of a segment queue entries lead to, in a sixty-fourth of the segment's size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout.record import MAX_RECORD_SIZE_BYTES

if TYPE_CHECKING:
    from store_core.broker.queue_recovery import QueueState

Ints = NDArray[np.int64]

CELL_BITS: Final = 6  # no two records begin within so many bytes, 64
_STEP_BYTES: Final = 64 << 10  # of entries that rise: few of them lie in one segment
_CHUNK_BYTES: Final = 4 << 20  # of entries that do not


class Span:
    """Entries of one queue file, from and to a position of the queue. ``is_rising``: none points in front of the one before."""

    def __init__(self, queue: QueueState, begin: int, end: int, *, is_rising: bool) -> None:
        self._queue = queue
        self._begin = begin
        self._end = end
        self._is_rising = is_rising

    def places(self, end_phy_offset: int) -> Iterator[tuple[Ints, Ints]]:
        """Where that begins and ends which entries lead to in front of ``end_phy_offset``, and maybe others.

        To be asked for one segment after the other, in their order: entries that rise are told once.
        """
        width = self._queue.entry_size_bytes
        step = _STEP_BYTES if self._is_rising else _CHUNK_BYTES
        for at in range(self._begin, self._end, step - step % width):
            entries = self._queue.entries(at, min(at + step - step % width, self._end))
            phy_offsets = entries["phy_offset"].astype(np.int64)
            count = len(entries)
            if self._is_rising:
                count = int(np.searchsorted(phy_offsets, end_phy_offset))
                self._begin += count * width
            sizes = entries["size_bytes"][:count].astype(np.int64)
            can_be = (sizes > 0) & (sizes <= MAX_RECORD_SIZE_BYTES) & self._queue.reaches(at, entries[:count])
            yield phy_offsets[:count][can_be], phy_offsets[:count][can_be] + sizes[can_be]
            if count < len(entries):
                return


class Covered:
    """The records of [start, end) that entries lead to: with their place, and with their size, too.

    It is known where entries point to, and where what they lead to ends. Only damage that puts one wrong entry's end just where the
    record ends that another wrong one points to is not seen.
    """

    def __init__(self, start: int, end: int) -> None:
        self._end = end
        self._starts, self._ends = Offsets(start, end), Offsets(start, end + 1)

    def add(self, starts: Ints, ends: Ints) -> None:
        """What lies elsewhere is left out."""
        self._starts.add(starts)
        self._ends.add(ends)

    def has(self, starts: Ints, ends: Ints) -> NDArray[np.bool_]:
        """Mask of the records, which all begin in [start, end), that an entry leads to; none of them reaches behind."""
        mask: NDArray[np.bool_] = ends <= self._end
        mask[mask] = self._starts.has(starts[mask]) & self._ends.has(ends[mask])
        return mask


class Offsets:
    """A set of log offsets of [start, end)."""

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._end = end
        # For each cell, which of its bytes is pointed to, counted from 1; offsets that share a cell with another are few.
        self._marks = np.zeros((end - start >> CELL_BITS) + 1, np.uint8)
        self._others: Ints = np.zeros(0, np.int64)

    def add(self, phy_offsets: Ints) -> None:
        """Those that lie elsewhere are left out."""
        places = phy_offsets[(phy_offsets >= self._start) & (phy_offsets < self._end)] - self._start
        cells, marks = _cells_and_marks(places)
        free = self._marks[cells] == 0
        self._marks[cells[free]] = marks[free]
        second = self._marks[cells] != marks
        if second.any():
            self._others = np.union1d(self._others, places[second])

    def has(self, phy_offsets: Ints) -> NDArray[np.bool_]:
        """Mask of the offsets, all of [start, end), that were added."""
        places = phy_offsets - self._start
        cells, marks = _cells_and_marks(places)
        known: NDArray[np.bool_] = self._marks[cells] == marks
        return known | np.isin(places, self._others) if len(self._others) else known


def _cells_and_marks(places: Ints) -> tuple[Ints, NDArray[np.uint8]]:
    return places >> CELL_BITS, ((places & ((1 << CELL_BITS) - 1)) + 1).astype(np.uint8)
