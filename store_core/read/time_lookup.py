"""Find the queue offset of a time (store behaviour 10.2)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from store_core.read.queue import ENTRY_SIZE_BYTES, BatchQueue, Queue
from store_core.read.records import read_store_timestamp_ms
from store_core.storage.sequence import Segment

Boundary = Literal["lower", "upper"]
_MTIME_LOSS_NS: Final = 1000  # lost where an archive stores a modification time as seconds in floating point


def offset_by_time(queue: Queue | BatchQueue, timestamp_ms: int, boundary: Boundary | None = None) -> int:
    """Return the queue offset that belongs to a store time.

    * ``lower``: the first entry with store time >= t, else the queue's max.
    * ``upper``: the last entry with store time <= t, else the queue's min.
    * None: the answer of a broker without boundaries (4.x: nearest entry, in the file chosen by modification time), or lower for 5.x.

    Store times are assumed to increase, as a broker assumes. In a batch queue a broker's search gives other answers, and so does this one.
    """
    if isinstance(queue, BatchQueue):
        return _batch_offset(queue, timestamp_ms, boundary or "lower")
    if boundary is None and not queue.rules.has_boundary:
        return _nearest(queue, timestamp_ms)
    return _bounded(queue, timestamp_ms, boundary or "lower")


@dataclass(frozen=True, slots=True)
class _Times:
    """Store times of a queue's entries by queue offset; None where the record cannot be read."""

    queue: Queue

    def __call__(self, queue_offset: int) -> int | None:
        entry = self.queue.entry(queue_offset)
        return None if entry is None else read_store_timestamp_ms(self.queue.log, entry.phy_offset)


def _bounded(queue: Queue, timestamp_ms: int, boundary: Boundary) -> int:
    """Return the offset by a binary search over the whole queue; if a record on the way is unreadable, by a scan of every entry."""
    first, end = queue.min_offset, queue.max_offset
    try:
        found = _searched(_Times(queue), first, end, timestamp_ms, boundary)
    except _UnreadableTimeError:
        found = _scanned(_Times(queue), first, end, timestamp_ms, boundary)
    if found is None:
        found = end if boundary == "lower" else first
    return min(max(found, first), end)


class _UnreadableTimeError(Exception):
    """A time that a search needs is unreadable."""


def _searched(times: _Times, first: int, end: int, timestamp_ms: int, boundary: Boundary) -> int | None:
    bisect: Callable[..., int] = bisect_left if boundary == "lower" else bisect_right

    def readable(queue_offset: int) -> int:
        time_ms = times(queue_offset)
        if time_ms is None:
            raise _UnreadableTimeError
        return time_ms

    place = bisect(range(end), timestamp_ms, first, end, key=readable)
    if boundary == "lower":
        return place if place < end else None
    return place - 1 if place > first else None


def _scanned(times: _Times, first: int, end: int, timestamp_ms: int, boundary: Boundary) -> int | None:
    found = None
    for queue_offset in range(first, end):
        time_ms = times(queue_offset)
        if time_ms is None:
            continue
        if boundary == "lower" and time_ms >= timestamp_ms:
            return queue_offset
        if boundary == "upper" and time_ms <= timestamp_ms:
            found = queue_offset
    return found


def _nearest(queue: Queue, timestamp_ms: int) -> int:
    """Return the 4.x answer: the entry nearest in time, in the first file modified at or after the time (else the last file)."""
    segment = _file_by_modification(queue, timestamp_ms)
    if segment is None:
        return 0
    low = max(segment.phy_offset // ENTRY_SIZE_BYTES, queue.min_offset)
    high = min(segment.end_phy_offset // ENTRY_SIZE_BYTES, queue.max_offset) - 1
    times = _Times(queue)
    earlier: tuple[int, int] | None = None
    later: tuple[int, int] | None = None
    while low <= high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        if entry is not None and entry.phy_offset < queue.log.min_phy_offset:
            low = middle + 1
            continue
        time_ms = times(middle)
        if time_ms is None:
            return 0
        if time_ms == timestamp_ms:
            return middle
        if time_ms > timestamp_ms:
            high, later = middle - 1, (middle, time_ms)
        else:
            low, earlier = middle + 1, (middle, time_ms)
    if earlier is None or later is None:
        return (earlier or later or (segment.phy_offset // ENTRY_SIZE_BYTES, 0))[0]
    return later[0] if timestamp_ms - earlier[1] > later[1] - timestamp_ms else earlier[0]


def _file_by_modification(queue: Queue, timestamp_ms: int) -> Segment | None:
    segments = queue.files.segments
    modified = (s for s in segments if (s.mtime_ns + _MTIME_LOSS_NS) // 1_000_000 >= timestamp_ms)
    return next(modified, segments[-1] if segments else None)


def _batch_offset(queue: BatchQueue, timestamp_ms: int, boundary: Boundary) -> int:
    """Return the first queue offset of the entry at which a broker's search ends, by the times in the entries.

    Every 5.x answers so. The file is the last one whose first entry is not later. Within it a time at or after the last entry's gives that entry. So
    ``lower`` may be an entry before the time, and is never the queue's max; ``upper`` is often an entry after the time, and the queue's min where the
    search finds none.
    """
    file = _batch_file(queue, timestamp_ms)
    place = -1 if file is None else _batch_slot(queue, file, timestamp_ms, boundary)
    entry = queue.at_slot(place)
    return min(max(-1 if entry is None else entry.queue_offset, queue.min_offset), queue.max_offset)


def _batch_file(queue: BatchQueue, timestamp_ms: int) -> range | None:
    """Return the places of the entries in the file that a broker searches; None if the queue has no entries."""
    files = queue.written_slots()
    if not files:
        return None
    first_ms = [_batch_time_ms(queue, file[0]) for file in files]
    if first_ms[-1] <= timestamp_ms:  # checked first: if a clock was set back, another file may start later
        return files[-1]
    candidates = [number for number, time_ms in enumerate(first_ms) if time_ms <= timestamp_ms]
    return files[max(candidates, key=lambda number: (first_ms[number], number), default=0)]


def _batch_slot(queue: BatchQueue, file: range, timestamp_ms: int, boundary: Boundary) -> int:
    """Return the place of the entry at which a broker's search of a file ends; -1 if it finds none.

    For ``upper`` the range shrinks to two neighbours, of which the left is not later than the time. The search ends at the left one if it has exactly
    this time, else at the right one. It finds none where the range has shrunk to one earlier entry.
    """
    low, high = file[0], file[-1]
    if timestamp_ms >= _batch_time_ms(queue, high):
        return high
    while low <= high:
        middle = (low + high) // 2
        time_ms = _batch_time_ms(queue, middle)
        if middle in (low, high):
            if time_ms >= timestamp_ms:
                return middle
            low = middle + 1
        elif boundary == "lower":
            low, high = (middle + 1, high) if time_ms < timestamp_ms else (low, middle)
        else:
            low, high = (middle, high) if time_ms <= timestamp_ms else (low, middle - 1)
    return -1


def _batch_time_ms(queue: BatchQueue, slot: int) -> int:
    entry = queue.at_slot(slot)
    return -1 if entry is None else entry.store_timestamp_ms
