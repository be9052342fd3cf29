"""Look up ranges of the log many times."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate


class Ranges:
    """Ranges [start, end) of offsets, in any order; they may overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        by_start = sorted(ranges)
        self._starts = [start for start, _ in by_start]
        self._ends = [end for _, end in by_start]
        self._reach = [*accumulate((end for _, end in by_start), max)]

    def overlap(self, start: int, end: int) -> bool:
        """Return True if a range overlaps [start, end)."""
        before = bisect_left(self._starts, end)
        return before > 0 and start < self._reach[before - 1]

    def outside(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) outside all ranges, in order."""
        number = bisect_right(self._reach, start)
        while number < len(self._starts) and self._starts[number] < end:
            if start < self._starts[number]:
                yield start, self._starts[number]
            start = max(start, self._ends[number])
            number += 1
        if start < end:
            yield start, end
