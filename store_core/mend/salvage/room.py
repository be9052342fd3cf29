"""Free room in closed regions, and many numbers of queues that get tombstones there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import record
from store_core.mend.salvage.fence import Fence
from store_core.mend.salvage.lost_record import LostRecord
from store_core.mend.salvage.rows import ROW, InLogOrder, Lost, LostRows, LostTable, Source
from store_core.mend.salvage.tombstones import Piece, TombstoneRun, can_be_told, smallest_tombstone_size_bytes
from store_core.storage.store import QueueKey

_MOST_AT_ONCE: Final = 1 << 16
Ints = NDArray[np.int64]


class Room:
    """Stretches of a fence that no tombstone takes."""

    def __init__(self, fence: Fence) -> None:
        self._parts = [
            _Part(starts, sizes, record.MIN_BLANK_SIZE_BYTES if is_last else fence.min_record_size_bytes, is_last)
            for starts, sizes, is_last in _stretches(fence)
        ]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(self, count: int, size_bytes: int) -> Ints:
        """Places for up to so many records of a size, first come first; fewer where there is not room for all.

        What stays of a stretch is nothing, or has room for a filler, or at the segment's end for its blank.
        """
        found = [np.zeros(0, np.int64)]
        for part in self._parts:
            found.append(part.take(count, size_bytes))
            count -= len(found[-1])
            if not count:
                break
        return np.concatenate(found)


@dataclass(slots=True)
class _Part:
    """Some stretches in log order: where they begin, and their sizes. ``spare_bytes``: what must stay if anything does."""

    starts: Ints
    sizes: Ints
    spare_bytes: int
    is_last: bool  # one stretch, which reaches the segment's end: that much stays for the blank

    def take(self, count: int, size_bytes: int) -> Ints:
        most = np.maximum((self.sizes - self.spare_bytes) // size_bytes, 0)
        if not self.is_last:
            most = np.where(self.sizes % size_bytes == 0, self.sizes // size_bytes, most)
        ends = np.minimum(np.cumsum(most), count)
        taken = np.diff(ends, prepend=0)
        which = np.repeat(np.arange(len(taken)), taken)
        places: Ints = self.starts[which] + (np.arange(len(which)) - (ends - taken)[which]) * size_bytes
        self.starts = self.starts + taken * size_bytes
        self.sizes = self.sizes - taken * size_bytes
        return places


def with_numbers(
    fence: Fence, room: Room, table: LostTable, wanted: Sequence[tuple[QueueKey, Sequence[int]]]
) -> tuple[list[Lost], list[int]]:
    """The fence's runs of tombstones, and more for numbers of queues, as far as there is ``room``, the fence's.

    Gives them in log order, and how many of each queue's numbers are among them, the first ones.
    """
    counts: list[int] = []
    lost: list[Lost] = []
    with InLogOrder() as order:
        for piece in fence.pieces:
            for chunk in piece.lost.chunks() if isinstance(piece, TombstoneRun) else ():
                order.add(chunk)
        for key, numbers in wanted:
            counts.append(0)
            known = LostRecord(key.topic, key.queue_id, 0)
            if not can_be_told(known):
                continue
            size = smallest_tombstone_size_bytes(known, property_crc=fence.property_crc)
            for at in range(0, len(numbers), _MOST_AT_ONCE):
                part = np.array(numbers[at : at + _MOST_AT_ONCE], np.int64)
                places = room.take(len(part), size)
                rows = np.zeros(len(places), ROW)
                rows["phy_offset"], rows["size_bytes"] = places, size
                rows["queue_offset"], rows["queue"] = part[: len(places)], table.queue_number(key, Source.NUMBER)
                if len(rows):
                    order.add(rows)
                counts[-1] += len(rows)
                if len(rows) < len(part):
                    break
        for rows in order.stretches():
            table.add_all(lost, rows)
    return lost, counts


def _stretches(fence: Fence) -> Iterator[tuple[Ints, Ints, bool]]:
    """Starts and sizes, and whether the last of them is the segment's end."""
    start = end = -1
    for piece in fence.pieces:
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
        last = fence.pieces[-1]
        yield np.array([start]), np.array([end - start]), isinstance(last, Piece) and last.is_blank


def _between(lost: LostRows) -> Iterator[tuple[Ints, Ints, bool]]:
    end = lost.phy_offset
    for rows in lost.chunks():
        ends = rows["phy_offset"] + rows["size_bytes"]
        starts = np.r_[end, ends[:-1]]
        free = rows["phy_offset"] - starts
        yield starts[free > 0], free[free > 0], False
        end = int(ends[-1])
