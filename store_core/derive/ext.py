"""ConsumeQueueExt files without bitmaps (store format 6.5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import queue

_UNIT_SIZE_BYTES: Final = queue.EXT_UNIT.size_bytes
_END_MARK: Final = queue.EXT_UNIT.field_struct("size_bytes").pack(queue.EXT_END_OF_FILE)


@dataclass(frozen=True, slots=True)
class ExtPlan:
    """Where the units of a queue lie, one a message, when none has a bitmap."""

    file_size_bytes: int

    @property
    def units_per_file(self) -> int:
        """A unit must leave room for the end mark's field and two bytes more."""
        return max((self.file_size_bytes - queue.EXT_END_BLANK_SIZE_BYTES) // _UNIT_SIZE_BYTES, 1)

    def units_before(self, file: int) -> int:
        return file * self.units_per_file

    def files(self, units: int) -> int:
        return -(-units // self.units_per_file)

    def addresses(self, first: int, count: int) -> NDArray[Any]:
        """Tags codes of the messages from number ``first`` on: the addresses of their units, i64[count]."""
        units = np.arange(first, first + count, dtype=np.int64)
        file, place = units // self.units_per_file, units % self.units_per_file
        return file * self.file_size_bytes + place * _UNIT_SIZE_BYTES + queue.EXT_ADDRESS_BASE

    def content(self, file: int, chunks: Iterator[NDArray[Any]]) -> Iterator[bytes]:
        """A file's bytes; ``chunks`` are rows from its first message on."""
        left = self.units_per_file
        written = 0
        for rows in chunks:
            units = np.zeros(min(len(rows), left), queue.EXT_UNIT.dtype)
            units["size_bytes"] = _UNIT_SIZE_BYTES
            units["tags_code"] = rows["tags_code"][: len(units)]
            units["store_timestamp_ms"] = rows["store_timestamp_ms"][: len(units)]
            yield units.tobytes()
            written += len(units) * _UNIT_SIZE_BYTES
            left -= len(units)
            if not left:
                more = next(chunks, None) is not None or len(rows) > len(units)
                if more:  # the mark is written when the next unit finds no room
                    yield _END_MARK
                    written += len(_END_MARK)
                break
        yield bytes(self.file_size_bytes - written)
