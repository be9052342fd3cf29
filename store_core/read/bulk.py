"""A whole queue as columns: what pull gives one by one, by tens of thousands (store format 2.2 and 6.1).

Records are read where queue entries say, neighbours together, and cut all at once by the kernel. Who reads many queues of one
log may keep its segments mapped (``LogMaps``): then nothing is copied.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.record import Message, decode_record
from store_core.kernel.codes import NEIGHBOUR_GAP_BYTES
from store_core.kernel.records import RecordColumns, cut_records
from store_core.layout import record
from store_core.read.maps import LogMaps
from store_core.read.queue import Queue
from store_core.storage.files import open_read_only, unreadable
from store_core.storage.sequence import Segment

GATHERED_SIZE_BYTES: Final = 4 << 20  # so much of the log makes one table: it stays in the processor's cache
Ints = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class QueueTable:
    """Entries of a queue in order, one row each, with the records they point to; arrays of one length.

    ``good`` rows point to a well-formed record of the entry's size. ``records`` has a row for each entry, where ``*_at`` are
    positions in ``window``, as is ``at``, the record's first byte; in rows that are not good only its place and size are
    told. A table is valid until the next one is asked for.
    """

    window: memoryview
    at: Ints
    good: NDArray[np.bool_]
    queue_offset: Ints
    phy_offset: Ints
    size_bytes: Ints
    tags_code: Ints
    records: RecordColumns

    def __len__(self) -> int:
        return len(self.good)

    def body(self, row: int) -> bytes:
        """The stored body."""
        return self._part(self.records.body_at[row], self.records.body_length[row])

    def topic(self, row: int) -> bytes:
        """The topic, as stored."""
        return self._part(self.records.topic_at[row], self.records.topic_length[row])

    def properties(self, row: int) -> bytes:
        """The property string, as stored."""
        return self._part(self.records.properties_at[row], self.records.properties_length[row])

    def message(self, row: int) -> Message:
        """A good row's message, for a person to read."""
        return decode_record(self.window, int(self.at[row]), int(self.phy_offset[row]), int(self.size_bytes[row]))

    def _part(self, at: Any, length: Any) -> bytes:
        return bytes(self.window[int(at) : int(at) + int(length)])


def read_queue(
    queue: Queue, first: int | None = None, end: int | None = None, *, maps: LogMaps | None = None
) -> Iterator[QueueTable]:
    """Entries of [first, end) (the queue's ends where nothing is said) with their records, table by table.

    Bodies' checksums are not looked at. Raises FailedError where a file cannot be read.
    """
    first = queue.min_offset if first is None else first
    end = queue.max_offset if end is None else end
    segments = queue.log.segments
    starts = np.array([s.phy_offset for s in segments], np.int64)
    ends = np.array([s.end_phy_offset for s in segments], np.int64)
    buffer = bytearray(2 * GATHERED_SIZE_BYTES if maps is None else 0)
    for start, entries in queue.columns(first, end):
        rows = _Rows(
            np.arange(start, start + len(entries), dtype=np.int64),
            entries["phy_offset"].astype(np.int64),
            entries["size_bytes"].astype(np.int64),
            entries["tags_code"].astype(np.int64),
        )
        number, share = _places(rows, starts, ends)
        differs = (number[1:] != number[:-1]) | (share[1:] != share[:-1])
        cuts = np.flatnonzero(np.r_[True, differs, True]).tolist()
        for low, high in itertools.pairwise(cuts):
            segment = segments[int(number[low])] if number[low] >= 0 else None
            yield _table(maps or buffer, segment, rows.part(slice(low, high)))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Entries in columns."""

    queue_offset: Ints
    phy_offset: Ints
    size_bytes: Ints
    tags_code: Ints

    def __len__(self) -> int:
        return len(self.queue_offset)

    def part(self, rows: slice) -> _Rows:
        return _Rows(self.queue_offset[rows], self.phy_offset[rows], self.size_bytes[rows], self.tags_code[rows])


def _places(rows: _Rows, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Which segment a record lies in (-1: it can lie in none), and which share of ``GATHERED_SIZE_BYTES`` is its own."""
    size = rows.size_bytes
    plausible = (size >= record.MIN_RECORD_SIZE_BYTES) & (size <= record.MAX_RECORD_SIZE_BYTES)
    size = np.where(plausible, size, 0)
    gap = np.zeros(len(rows), np.int64)  # what is read between this record and the one in front of it
    gap[1:] = rows.phy_offset[1:] - (rows.phy_offset + size)[:-1]
    gap[(gap < 0) | (gap > NEIGHBOUR_GAP_BYTES)] = 0
    share = np.cumsum(size + gap) // GATHERED_SIZE_BYTES
    if not len(starts):
        return np.full(len(rows), -1, np.int64), share
    number = np.searchsorted(starts, rows.phy_offset, "right") - 1
    inside = (number >= 0) & plausible & (rows.phy_offset <= ends[np.maximum(number, 0)] - size)
    return np.where(inside, number, -1), share


def _table(place: LogMaps | bytearray, segment: Segment | None, rows: _Rows) -> QueueTable:
    window, at = memoryview(b""), np.full(len(rows), -1, np.int64)
    if segment is not None:
        at = rows.phy_offset - segment.phy_offset
        window, at = (
            (place.of(segment).data, at)
            if isinstance(place, LogMaps)
            else _gathered(place, segment, at, rows.size_bytes)
        )
    records = cut_records(window, at, rows.size_bytes)
    return QueueTable(
        window, at, records.good, rows.queue_offset, rows.phy_offset, rows.size_bytes, rows.tags_code, records
    )


def _gathered(buffer: bytearray, segment: Segment, at: Ints, size: Ints) -> tuple[memoryview, Ints]:
    """The records at these places of a segment's file, back to back but for small gaps, and where each one begins.

    Where the file has become shorter under us stands what the buffer held before, cut off from the window.
    """
    end = at + size
    gap = at[1:] - end[:-1]
    is_first = np.r_[True, (gap < 0) | (gap > NEIGHBOUR_GAP_BYTES)]
    firsts = np.flatnonzero(is_first)
    starts = at[firsts]
    sizes = end[np.r_[firsts[1:] - 1, len(at) - 1]] - starts
    begins = np.cumsum(sizes) - sizes
    if (whole := int(sizes.sum())) > len(buffer):  # one record of many megabytes
        buffer = bytearray(whole)
    view = memoryview(buffer)
    try:
        descriptor = open_read_only(segment.path)
    except FileNotFoundError:
        return view[:0], at
    except OSError as error:
        raise unreadable(segment.path, error) from error
    done = 0
    try:
        for place, begin, count in zip(starts.tolist(), begins.tolist(), sizes.tolist(), strict=True):
            if os.preadv(descriptor, [view[begin : begin + count]], place) < count:
                break
            done = begin + count
    except OSError as error:
        raise unreadable(segment.path, error) from error
    finally:
        os.close(descriptor)
    run = np.cumsum(is_first) - 1
    return view[:done], begins[run] + at - starts[run]
