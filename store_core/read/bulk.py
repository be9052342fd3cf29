"""A whole queue as columns: what pull gives one by one, by tens of thousands (store format 2.2 and 6.1).

Records are read where queue entries say, neighbours together, and cut while they are in the processor's cache, by several
threads of the kernel where there is enough of it. Who reads many queues of one log may keep its segments mapped
(``LogMaps``): then nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.record import Message, decode_record
from store_core.kernel.records import RecordColumns
from store_core.kernel.tables import EntryTable, cut_table, plan_table, read_table
from store_core.layout.queue import ENTRY
from store_core.read.maps import LogMaps
from store_core.read.queue import Queue
from store_core.storage.files import unreadable
from store_core.storage.sequence import Segment

GATHERED_SIZE_BYTES: Final = 4 << 20  # so much of the log makes one table: enough for several threads
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
    buffer = np.empty(0, np.uint8)
    for start, entries in queue.chunks(first, end):
        row = 0
        while row < len(entries) // ENTRY.size_bytes:
            number, rows, size_bytes = plan_table(entries, row, starts, ends, GATHERED_SIZE_BYTES)
            if number < 0:
                window, table = _nothing(entries, row, rows)
            elif maps is not None:
                mapped = maps.of(segments[number])
                window, table = mapped.data, cut_table(entries, row, rows, mapped, segments[number].phy_offset)
            else:
                if size_bytes > len(buffer):
                    buffer = np.empty(max(size_bytes, GATHERED_SIZE_BYTES), np.uint8)
                window, table = _read(entries, row, rows, segments[number], buffer)
            numbers = np.arange(start + row, start + row + rows, dtype=np.int64)
            yield QueueTable(window, table.at, table.records.good, numbers, *table[1:])
            row += rows


def _nothing(entries: bytes, row: int, rows: int) -> tuple[memoryview, EntryTable]:
    """Entries that point to no record."""
    table = cut_table(entries, row, rows, np.empty(0, np.uint8), 0)
    return memoryview(b""), table._replace(at=np.full(rows, -1, np.int64))


def _read(
    entries: bytes, row: int, rows: int, segment: Segment, buffer: NDArray[np.uint8]
) -> tuple[memoryview, EntryTable]:
    try:
        table, filled = read_table(entries, row, rows, segment.path, segment.phy_offset, buffer)
    except FileNotFoundError:
        return _nothing(entries, row, rows)
    except OSError as error:
        raise unreadable(segment.path, error) from error
    return buffer.data[:filled], table
