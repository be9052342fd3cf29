"""Build ConsumeQueueExt files without bitmaps (store format 6.5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import queue
from store_core.storage.sequence import SegmentSequence

_UNIT_SIZE_BYTES: Final = queue.EXT_UNIT.size_bytes
_SIZE: Final = queue.EXT_UNIT.field_struct("size_bytes")
_END_MARK: Final = _SIZE.pack(queue.EXT_END_OF_FILE)
_CHUNK_BYTES: Final = _UNIT_SIZE_BYTES << 15


@dataclass(frozen=True, slots=True)
class ExtPlan:
    """The positions of a queue's units, one for each message, if none has a bitmap.

    ``first_unit``: the place of the first message's unit, counted as if all files from the one named 0 were full of units.
    """

    file_size_bytes: int
    first_unit: int = 0

    @property
    def units_per_file(self) -> int:
        """The units of a file, which leave room for the end mark's field and two bytes more."""
        return max((self.file_size_bytes - queue.EXT_END_BLANK_SIZE_BYTES) // _UNIT_SIZE_BYTES, 1)

    @property
    def first_file(self) -> int:
        return self.first_unit // self.units_per_file

    def head_units(self, file: int) -> int:
        """Return how many places of a file are before the first message's unit."""
        return self.first_unit % self.units_per_file if file == self.first_file else 0

    def units_before(self, file: int) -> int:
        """Return how many messages have their units in earlier files."""
        return max(file * self.units_per_file - self.first_unit, 0)

    def files(self, units: int) -> int:
        """Return the number after the last file's for a queue of ``units`` messages."""
        return -(-(self.first_unit + units) // self.units_per_file)

    def data_bytes(self, file: int, messages: int) -> int:
        """Return an upper bound of a file's bytes that are not zeros, for a queue of so many messages."""
        units = self.head_units(file) + max(messages - self.units_before(file), 0)
        return min(units * _UNIT_SIZE_BYTES + len(_END_MARK), self.file_size_bytes)

    def addresses(self, first: int, count: int) -> NDArray[Any]:
        """Return the tags codes of the messages from number ``first`` on: the addresses of their units, i64[count]."""
        units = np.arange(first, first + count, dtype=np.int64) + self.first_unit
        file, place = units // self.units_per_file, units % self.units_per_file
        return file * self.file_size_bytes + place * _UNIT_SIZE_BYTES + queue.EXT_ADDRESS_BASE

    def unit_at(self, address: int) -> int | None:
        """Return the place of an address, counted as ``first_unit`` is; None if no unit can start there."""
        file, at = divmod(queue.ext_offset(address), self.file_size_bytes)
        place, odd = divmod(at, _UNIT_SIZE_BYTES)
        return file * self.units_per_file + place if not odd and place < self.units_per_file else None

    def content(
        self, file: int, chunks: Iterator[NDArray[Any]], standing: SegmentSequence | None = None
    ) -> Iterator[bytes]:
        """Yield a file's bytes; ``chunks``: rows from its first message on; ``standing``: the files with the units before it."""
        head = self.head_units(file)
        if head:
            yield from _head(standing, file * self.file_size_bytes, head)
        free = self.units_per_file - head
        written = head * _UNIT_SIZE_BYTES
        for rows in chunks:
            units = np.zeros(min(len(rows), free), queue.EXT_UNIT.dtype)
            units["size_bytes"] = _UNIT_SIZE_BYTES
            units["tags_code"] = rows["tags_code"][: len(units)]
            units["store_timestamp_ms"] = rows["store_timestamp_ms"][: len(units)]
            yield units.tobytes()
            written += len(units) * _UNIT_SIZE_BYTES
            free -= len(units)
            if not free:
                more = next(chunks, None) is not None or len(rows) > len(units)
                if more:  # the mark is written when the next unit finds no room
                    yield _END_MARK
                    written += len(_END_MARK)
                break
        yield bytes(self.file_size_bytes - written)


def is_plain_unit(files: SegmentSequence, address: int, tags_code: int, store_timestamp_ms: int) -> bool:
    """Return True if the unit at an address has exactly these values and no bitmap."""
    unit = (_UNIT_SIZE_BYTES, tags_code, store_timestamp_ms, 0)
    return files.read(queue.ext_offset(address), _UNIT_SIZE_BYTES) == queue.EXT_UNIT.struct.pack(*unit)


def can_be_walked(files: SegmentSequence, start: int, end: int) -> bool:
    """Return True if the units of the file [start, end) end within it; else a broker does not start (behaviour 2, step 8)."""
    return _end_of_units(files, start, end) + _SIZE.size <= end


def _head(standing: SegmentSequence | None, start: int, units: int) -> Iterator[bytes]:
    """Yield the existing units at a file's start; if their lengths do not lead to the last one's end, reset all lengths."""
    end = start + units * _UNIT_SIZE_BYTES
    is_whole = standing is not None and _end_of_units(standing, start, end) == end
    for at in range(start, end, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, end - at)
        data = standing.read(at, size) if standing is not None else b""
        if not is_whole:
            array = np.frombuffer(data.ljust(size, b"\0"), queue.EXT_UNIT.dtype).copy()
            array["size_bytes"], array["bitmap_length"] = _UNIT_SIZE_BYTES, 0
            data = array.tobytes()
        yield data


def _end_of_units(files: SegmentSequence, start: int, end: int) -> int:
    """Return the end of the units from ``start`` on; it exceeds ``end`` if a unit that starts before ``end`` does."""
    at = start
    while at + _SIZE.size <= end:
        data = files.read(at, min(_CHUNK_BYTES, end - at))
        units = np.frombuffer(data, queue.EXT_UNIT.dtype, len(data) // _UNIT_SIZE_BYTES)
        others = np.flatnonzero(units["size_bytes"] != _UNIT_SIZE_BYTES)
        place = (int(others[0]) if len(others) else len(units)) * _UNIT_SIZE_BYTES
        while place + _SIZE.size <= len(data):
            (size,) = _SIZE.unpack_from(data, place)
            if size <= 0:
                return at + place
            place += size
        if not place:  # no file, or it is cut off
            break
        at += place
    return at
