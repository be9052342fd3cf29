"""Find the file of an offset as a broker does, by number or else by a search of all (``MappedFileQueue``; behaviour 1.4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class FileLookup:
    """The files of a sequence in a broker's order, each given by its start. All have one size.

    The place of an offset in its file is the remainder of its division by the size, wherever the file starts.
    """

    def __init__(self, starts: Sequence[int], size_bytes: int) -> None:
        self._starts = starts
        self.size_bytes = size_bytes
        self.is_plain = all(start % size_bytes == 0 for start in starts) and all(
            before < after for before, after in pairwise(starts)
        )

    def place(self, phy_offset: int) -> int | None:
        """Return the index of the file that a broker reads for an offset, or None."""
        found = int(self.places(np.array([phy_offset], np.int64))[0])
        return None if found < 0 else found

    def places(self, phy_offsets: Ints) -> Ints:
        """Return ``place`` of many offsets; -1 where no file is read."""
        places = np.full(len(phy_offsets), -1, np.int64)
        if not self._starts:
            return places
        starts, size = np.array(self._starts, np.int64), self.size_bytes
        first = self._starts[0]
        number = phy_offsets // size - (first // size if first >= 0 else -(-first // size))  # as Java divides
        in_range = (phy_offsets >= first) & (phy_offsets < self._starts[-1] + size)
        in_turn = starts[np.clip(number, 0, len(starts) - 1)]
        is_there = in_range & (number >= 0) & (number < len(starts))
        is_there &= (phy_offsets >= in_turn) & (phy_offsets < in_turn + size)
        places[is_there] = number[is_there]
        unplaced = in_range & ~is_there
        for place, start in enumerate(self._starts) if unplaced.any() else ():
            is_inside = unplaced & (phy_offsets >= start) & (phy_offsets < start + size)
            places[is_inside] = place
            unplaced &= ~is_inside
        return places

    def offset_of(self, start: int, in_file: Ints) -> Ints:
        """Return the offsets within a file's range for which a broker reads at these places of the file."""
        offsets = start - start % self.size_bytes + in_file
        return np.where(offsets < start, offsets + self.size_bytes, offsets)
