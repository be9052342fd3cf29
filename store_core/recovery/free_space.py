"""Find free room in closed regions for tombstones of many queue numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import record
from store_core.recovery.damaged_region import ClosedRegion
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import ROW, InLogOrder, Lost, LostRows, LostTable, Source, joining
from store_core.recovery.tombstones import Piece, TombstoneRun, can_be_told, smallest_tombstone_size_bytes
from store_core.storage.store import QueueKey

_MOST_AT_ONCE: Final = 1 << 16
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Rising numbers as runs: each starts at its first and has ``counts`` numbers, ``step`` apart."""

    firsts: Ints
    counts: Ints
    step: int = 1

    def __len__(self) -> int:
        return int(self.counts.sum())

    def between(self, start: int, stop: int) -> Ints:
        """Return the numbers at indices [start, stop) of all."""
        ends = np.cumsum(self.counts)
        places = np.arange(start, stop)
        run = np.searchsorted(ends, places, "right")
        found: Ints = self.firsts[run] + (places - (ends - self.counts)[run]) * self.step
        return found


class Room:
    """The ranges of a closed region that no tombstone takes."""

    def __init__(self, closed_region: ClosedRegion) -> None:
        self._property_crc = closed_region.property_crc
        self._parts = [
            _Part(
                starts, sizes, record.MIN_BLANK_SIZE_BYTES if is_last else closed_region.min_record_size_bytes, is_last
            )
            for starts, sizes, is_last in _in_batches(_free_ranges(closed_region))
        ]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(self, key: QueueKey, count: int, between: tuple[int, int]) -> Runs:
        """Return the first free places between two log offsets for up to ``count`` tombstones of a queue.

        They are fewer if there is not room for all; their step is the room of each. The rest of a range is empty, or has room
        for a filler, or at the segment's end for its blank.
        """
        known = LostRecord(key.topic, key.queue_id, 0)
        none = np.zeros(0, np.int64)
        if not can_be_told(known):
            return Runs(none, none)
        size = smallest_tombstone_size_bytes(known, property_crc=self._property_crc)
        firsts, counts = [none], [none]
        for part in self._parts:
            first, taken = part.take(count, size, between)
            firsts.append(first)
            counts.append(taken)
            count -= int(taken.sum())
            if not count:
                break
        return Runs(np.concatenate(firsts), np.concatenate(counts), size)


@dataclass(slots=True)
class _Part:
    """Free ranges in log order: their starts and sizes. ``spare_bytes``: the least rest of a range, unless nothing stays."""

    starts: Ints
    sizes: Ints
    spare_bytes: int
    is_last: bool  # a single range that reaches the segment's end: ``spare_bytes`` stay for the blank

    def take(self, count: int, size_bytes: int, between: tuple[int, int]) -> tuple[Ints, Ints]:
        """Take room and return the starts of the taken ranges and how many tombstones each has."""
        capacity = np.maximum((self.sizes - self.spare_bytes) // size_bytes, 0)
        if not self.is_last:
            capacity = np.where(self.sizes % size_bytes == 0, self.sizes // size_bytes, capacity)
        capacity = np.where((self.starts > between[0]) & (self.starts < between[1]), capacity, 0)
        ends = np.minimum(np.cumsum(capacity), count)
        taken = np.diff(ends, prepend=0)
        first = self.starts
        self.starts = self.starts + taken * size_bytes
        self.sizes = self.sizes - taken * size_bytes
        return first[taken > 0], taken[taken > 0]


def with_numbers(
    closed_region: ClosedRegion, table: LostTable, taken: Iterable[tuple[QueueKey, Runs, Runs]]
) -> list[Lost]:
    """Return the region's runs of tombstones, and new ones for numbers with places from ``Room``, in log order."""
    lost: list[Lost] = []
    others = np.array([p.phy_offset for p in closed_region.pieces if isinstance(p, Piece) and p.tombstone_of], np.int64)
    with InLogOrder() as order:
        for piece in closed_region.pieces:
            for chunk in piece.lost.chunks() if isinstance(piece, TombstoneRun) else ():
                order.add(chunk)
        for key, numbers, places in taken:
            for at in range(0, len(places), _MOST_AT_ONCE):
                stop = min(at + _MOST_AT_ONCE, len(places))
                rows = np.zeros(stop - at, ROW)
                rows["phy_offset"], rows["size_bytes"] = places.between(at, stop), places.step
                rows["queue_offset"], rows["queue"] = numbers.between(at, stop), table.queue_number(key, Source.NUMBER)
                rows["batch_size"] = 1
                order.add(rows)
        for rows in order.stretches():
            in_between = (
                np.diff(np.searchsorted(others, rows["phy_offset"])) > 0
            )  # a tombstone that is no row stays there
            lost += map(table.append, np.split(rows, np.flatnonzero(~joining(rows) | in_between) + 1))
    return lost


def _in_batches(ranges: Iterable[tuple[Ints, Ints, bool]]) -> Iterator[tuple[Ints, Ints, bool]]:
    """Yield the same ranges in fewer arrays, the segment's last one separate."""
    starts, sizes, count = list[Ints](), list[Ints](), 0
    for some_starts, some_sizes, is_last in ranges:
        if starts and (is_last or count >= _MOST_AT_ONCE):
            yield np.concatenate(starts), np.concatenate(sizes), False
            starts, sizes, count = [], [], 0
        if is_last:
            yield some_starts, some_sizes, True
            continue
        starts.append(some_starts)
        sizes.append(some_sizes)
        count += len(some_starts)
    if starts:
        yield np.concatenate(starts), np.concatenate(sizes), False


def _free_ranges(closed_region: ClosedRegion) -> Iterator[tuple[Ints, Ints, bool]]:
    """Yield starts and sizes of free ranges, and True if the range reaches the segment's end."""
    start = end = -1
    for piece in closed_region.pieces:
        is_free = isinstance(piece, Piece) and piece.tombstone_of is None
        if is_free and piece.phy_offset == end:
            end += piece.size_bytes
            continue
        if start < end:
            yield np.array([start]), np.array([end - start]), False
        start, end = (piece.phy_offset, piece.phy_offset + piece.size_bytes) if is_free else (-1, -1)
        if isinstance(piece, TombstoneRun):
            yield from _between(piece.lost)
    if start < end:
        last = closed_region.pieces[-1]
        yield np.array([start]), np.array([end - start]), isinstance(last, Piece) and last.is_blank


def _between(lost: LostRows) -> Iterator[tuple[Ints, Ints, bool]]:
    end = lost.phy_offset
    for rows in lost.chunks():
        ends = rows["phy_offset"] + rows["size_bytes"]
        starts = np.r_[end, ends[:-1]]
        free = rows["phy_offset"] - starts
        yield starts[free > 0], free[free > 0], False
        end = int(ends[-1])
