"""Keep the records of many small groups together until they are read in order.

Separate columns cost each group time and memory, however few rows it has. The log of a broker with many topics has
only a few rows of each between two flushes.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_core.kernel.arrow import ArrowColumns, collector
from store_core.scan.frames import Ints

SortKey = tuple[str, str]  # a folder, and a topic in it: rows are sorted by both
_SLACK: Final = 1.1


class SharedRecords:
    """The bytes of records, one after another. ``expected_bytes``: the approximate length of all records to come."""

    def __init__(self, expected_bytes: int) -> None:
        # The kernel reserves no memory for untouched pages.
        self._data = np.empty(int(expected_bytes * _SLACK), np.uint8)
        self._end = 0
        self._sizes: list[Ints] = []

    def add(self, window: Any, at: Ints, size_bytes: Ints) -> None:
        """Add the records at ascending places of a window (bytes-like)."""
        length = int(size_bytes.sum())
        end = self._end + length
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), np.uint8)
            grown[: self._end] = self._data[: self._end]
            self._data = grown
        self._data[self._end : end] = _side_by_side(window, at, size_bytes, length)
        self._end = end
        self._sizes.append(np.asarray(size_bytes, np.int64))

    def columns(self, wanted: int, order: NDArray[np.intp]) -> Callable[[slice], ArrowColumns]:
        """Return a function that makes the columns of some records, counted in ``order``. ``wanted``: ArrowPart."""
        sizes = np.concatenate(self._sizes)
        at = np.cumsum(sizes) - sizes
        at, sizes = at[order], sizes[order]

        def of(rows: slice) -> ArrowColumns:
            made = collector(wanted, int(sizes[rows].sum()))
            made.add(self._data, at[rows], sizes[rows], np.zeros(rows.stop - rows.start, np.uint32))
            return made.take(0)

        return of


def _side_by_side(window: Any, at: Ints, size_bytes: Ints, length: int) -> NDArray[np.uint8]:
    first, last = int(at[0]), int(at[-1] + size_bytes[-1])
    if last - first == length:
        return np.frombuffer(window, np.uint8, length, first)
    bounds = np.stack((at, at + size_bytes), 1).astype(np.int32).ravel()  # of a record, of the bytes after it, …
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(window)]
    both = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    records = both.take(pa.array(np.arange(0, len(both), 2)))
    return np.frombuffer(records.buffers()[2], np.uint8, length)


class Stretch(NamedTuple):
    """Rows [start, end) in sorted order, all for one folder; ``group`` is the number of the first one's group."""

    group: int
    start: int
    end: int


class SortedGroups:
    """Sorts rows of small groups by the places of their groups.

    ``groups``: each row's group; ``place_of``: the sort key of a group.
    """

    def __init__(self, groups: NDArray[np.uint32], place_of: Callable[[int], SortKey]) -> None:
        present, number = np.unique(groups, return_inverse=True)
        self._groups = sorted((place_of(group), group) for group in present.tolist())
        rank = np.empty(len(present), np.int64)
        rank[np.searchsorted(present, [group for _, group in self._groups])] = np.arange(len(present))
        ranks = rank[number]
        self._ends = np.cumsum(np.bincount(ranks))
        self.order = np.argsort(ranks, kind="stable")  # indices of the sorted rows in the order of arrival

    def stretches(self, size_bytes: Ints, wanted_bytes: range, others: Sequence[SortKey]) -> Iterator[Stretch]:
        """Yield the sorted rows in ranges of a wanted length; ``size_bytes``: the length of each row, sorted.

        A range ends before another folder and before any of ``others``, which ascend. A group that is as long by
        itself shares no range.
        """
        sums = np.concatenate(([0], np.cumsum(size_bytes)))
        ends = self._ends.tolist()
        sums_at = dict(zip([0, *ends], sums[[0, *ends]].tolist(), strict=True))
        start = at = 0
        first, range_neighbours = self._groups[0][1], ("", 0)
        for (place, group), end in zip(self._groups, ends, strict=True):
            neighbours = (place[0], bisect(others, place))
            is_long = max(sums_at[end] - sums_at[at], sums_at[at] - sums_at[start]) >= wanted_bytes.start
            if start < at and (is_long or neighbours != range_neighbours):
                yield from _cut(Stretch(first, start, at), sums, wanted_bytes.stop)
                start = at
            if start == at:
                first, range_neighbours = group, neighbours
            at = end
        yield from _cut(Stretch(first, start, at), sums, wanted_bytes.stop)


def _cut(stretch: Stretch, sums: Ints, most_bytes: int) -> Iterator[Stretch]:
    """Yield a long range in parts of about one length; ``sums``: bytes before each row."""
    sums_of_range = sums[stretch.start : stretch.end + 1]
    for begin, stop in pairwise(
        even_bounds(sums_of_range, round(int(sums_of_range[-1] - sums_of_range[0]) / most_bytes))
    ):
        yield Stretch(stretch.group, stretch.start + begin, stretch.start + stop)


def even_bounds(sums: Ints, count: int) -> list[int]:
    """Return where to cut rows into ``count`` parts of about one length; long rows may give fewer parts.

    ``sums``: bytes before each row, and after the last one.
    """
    inner = sums[0] + (sums[-1] - sums[0]) * np.arange(1, max(count, 1)) // max(count, 1)
    return sorted({0, *np.searchsorted(sums, inner).tolist(), len(sums) - 1})
