"""Contiguous runs of numbers: findings are said once a run, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def runs_of(mask: NDArray[np.bool_], start: int = 0) -> Iterator[tuple[int, int]]:
    """[begin, end) of each run of True, in numbers from ``start`` on."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield start + begin, start + end


@dataclass(slots=True)
class Intervals:
    """A set of numbers, given mostly in ascending runs, kept as [begin, end) pairs."""

    _begins: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    def add(self, begin: int, end: int) -> None:
        if self._ends and self._ends[-1] == begin:
            self._ends[-1] = end
        else:
            self._begins.append(begin)
            self._ends.append(end)

    def add_numbers(self, numbers: NDArray[Any]) -> None:
        """Numbers in any order; runs of consecutive ones are kept as such."""
        if not len(numbers):
            return
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        begins = numbers[np.concatenate([[0], breaks])]
        ends = numbers[np.concatenate([breaks - 1, [len(numbers) - 1]])] + 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self.add(begin, end)

    @property
    def end(self) -> int:
        """Behind the largest number; 0 without any."""
        return max(self._ends, default=0)

    def sorted(self) -> list[tuple[int, int]]:
        """Disjoint pairs in order."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(zip(self._begins, self._ends, strict=True)):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        return merged

    def missing(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [begin, end) is not in the set."""
        at = begin
        for low, high in self.sorted():
            if low >= end:
                break
            if low > at:
                yield at, low
            at = max(at, high)
        if at < end:
            yield at, end


class OffsetRanges:
    """Ranges of the log, given in order, for fast look-ups."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        self._begins.append(begin)
        self._ends.append(end)

    def __contains__(self, phy_offset: int) -> bool:
        return bool(self.contain(np.array([phy_offset]))[0])

    def contain(self, phy_offsets: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of the offsets lie in a range."""
        if not self._begins:
            return np.zeros(len(phy_offsets), bool)
        begins, ends = np.array(self._begins), np.array(self._ends)
        place = np.searchsorted(begins, phy_offsets, side="right") - 1
        inside: NDArray[np.bool_] = (place >= 0) & (phy_offsets < ends[np.maximum(place, 0)])
        return inside
