"""Record which records of a segment have queue entries, in a sixty-fourth of the segment's size for each set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout.record import MAX_RECORD_SIZE_BYTES

if TYPE_CHECKING:
    from store_core.broker.queue_recovery import QueueState

Ints = NDArray[np.int64]

CELL_BITS: Final = 6  # no two records start within 64 bytes
_STEP_BYTES: Final = 64 << 10  # of rising entries, because few of them point into one segment
_CHUNK_BYTES: Final = 4 << 20  # of other entries


class Span:
    """Entries of a queue file in [begin, end) of the queue, in bytes. ``is_rising``: their log offsets never fall."""

    def __init__(self, queue: QueueState, begin: int, end: int, *, is_rising: bool) -> None:
        self._queue = queue
        self._begin = begin
        self._end = end
        self._is_rising = is_rising

    def places(self, end_phy_offset: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield starts and ends in the log of the records of all entries before ``end_phy_offset``, and maybe of others.

        The caller asks for segments in log order: each rising entry is yielded once.
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
    """The records of [start, end) of the log to which entries point with the right offset and size.

    Starts and ends are two separate sets, so a record is also taken for covered if one wrong entry has its start and another
    wrong one its end.
    """

    def __init__(self, start: int, end: int) -> None:
        self._end = end
        self._starts, self._ends = Offsets(start, end), Offsets(start, end + 1)

    def add(self, starts: Ints, ends: Ints) -> None:
        """Add records by their starts and ends; offsets outside the range are ignored."""
        self._starts.add(starts)
        self._ends.add(ends)

    def has(self, starts: Ints, ends: Ints) -> NDArray[np.bool_]:
        """Return the mask of the records that have an entry and end in the range. All must start in [start, end)."""
        mask: NDArray[np.bool_] = ends <= self._end
        mask[mask] = self._starts.has(starts[mask]) & self._ends.has(ends[mask])
        return mask


class Offsets:
    """A set of log offsets in [start, end)."""

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._end = end
        # Each cell has the number, from 1, of its first added byte; few offsets share a cell.
        self._marks = np.zeros((end - start >> CELL_BITS) + 1, np.uint8)
        self._others: Ints = np.zeros(0, np.int64)

    def add(self, phy_offsets: Ints) -> None:
        """Add offsets; those outside the range are ignored."""
        places = phy_offsets[(phy_offsets >= self._start) & (phy_offsets < self._end)] - self._start
        cells, marks = _cells_and_marks(places)
        free = self._marks[cells] == 0
        self._marks[cells[free]] = marks[free]
        second = self._marks[cells] != marks
        if second.any():
            self._others = np.union1d(self._others, places[second])

    def has(self, phy_offsets: Ints) -> NDArray[np.bool_]:
        """Return the mask of the offsets that were added. All must lie in [start, end)."""
        places = phy_offsets - self._start
        cells, marks = _cells_and_marks(places)
        known: NDArray[np.bool_] = self._marks[cells] == marks
        return known | np.isin(places, self._others) if len(self._others) else known


def _cells_and_marks(places: Ints) -> tuple[Ints, NDArray[np.uint8]]:
    return places >> CELL_BITS, ((places & ((1 << CELL_BITS) - 1)) + 1).astype(np.uint8)
