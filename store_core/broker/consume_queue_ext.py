"""Model the ext files of a queue as a broker has them in memory (behaviour 2, step 8; store format 6.5).

A unit has the length of its filter, and a broker reads that many bytes without a check that they exist. If they do not, reading
throws: loading fails if it is the unit at the queue's newest address, else pulls of that message fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import queue as layout

if TYPE_CHECKING:
    from store_core.storage.sequence import Segment, SegmentSequence

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_UNIT: Final = layout.EXT_UNIT
_SIZE: Final = _UNIT.field_struct("size_bytes")
_WINDOW_BYTES: Final = 1 << 20
_SIGN: Final = np.uint64(1 << 63)  # set in an address, not in an offset


class ExtFiles:
    """The ext files of a queue, whose units are whole once they are recovered. ``name``: the folder's, for messages."""

    def __init__(self, name: str, found: SegmentSequence, segments: list[Segment], file_size_bytes: int) -> None:
        self.end = segments[-1].phy_offset + file_size_bytes if segments else 0  # after the last unit
        self._name = name
        self._found = found
        self._starts = [segment.phy_offset for segment in segments]
        self._file_size_bytes = file_size_bytes

    def recover(self, newest_address: int | None) -> str:
        """Find the end of the newest unit that the queue has an address of; return why that fails, or ""."""
        for start in self._starts:
            end, is_torn = self._end_of_units(start)
            if is_torn:
                return f"{self._name} has a unit at {end} that does not fit into its file, at which loading fails"
            self.end = end
        if newest_address is None or not self._starts:
            return ""
        address = np.array([newest_address], np.int64)
        if self.throws(address)[0]:
            offset = layout.ext_offset(newest_address)
            return (
                f"{self._name} has a unit at {offset} whose filter does not fit into its file, at which loading fails"
            )
        places, ends = self._places(address)
        size = self._shorts(places)[0] if ends[0] - places[0] >= _SIZE.size else 0
        if size > 0:
            self._cut(int(places[0] + size))
        return ""

    def grow(self, units: int) -> None:
        """Append units without a filter: the broker writes one for each dispatched message, also for repeats."""
        if self._starts:
            self.end = min(self.end + units * _UNIT.size_bytes, self._starts[-1] + self._file_size_bytes)

    def throws(self, tags_codes: Ints) -> Mask:
        """Return the mask of the tags codes that are addresses of units at which reading throws."""
        mask = np.zeros(len(tags_codes), np.bool_)
        at = np.flatnonzero(tags_codes <= layout.EXT_MAX_ADDRESS)
        places, ends = self._places(tags_codes[at])
        left_bytes = ends - places
        is_read = left_bytes >= _SIZE.size
        at, places, left_bytes = at[is_read], places[is_read], left_bytes[is_read]
        filters = self._shorts(places + _UNIT.offset_of("bitmap_length"))
        room_bytes = left_bytes - _UNIT.size_bytes
        mask[at] = (self._shorts(places) > 0) & ((room_bytes < 0) | (filters > room_bytes))
        return mask

    def _end_of_units(self, start: int) -> tuple[int, bool]:
        """Return the end of a file's units and False, or the start of a unit that exceeds the file and True."""
        at, window, data, end = start, start, b"", start + self._file_size_bytes
        while at + _SIZE.size <= end:
            if at + _SIZE.size > window + len(data):
                window, data = at, self._found.read(at, min(_WINDOW_BYTES, end - at))
            (size,) = _SIZE.unpack_from(data, at - window)
            if size <= 0:
                return at, False
            if at + size > end:
                break
            at += size
        return at, True

    def _cut(self, end: int) -> None:
        """Drop files that start after ``end``."""
        self._starts = [start for start in self._starts if start <= end]
        self.end = end if self._starts else 0

    def _places(self, addresses: Ints) -> tuple[Ints, Ints]:
        """Return the positions of units and the ends of the bytes readable from them; both are equal if no file has it."""
        places = (addresses.view(np.uint64) ^ _SIGN).astype(np.int64)
        if not self._starts:
            return places, places
        starts = np.array(self._starts, np.int64)
        places = np.where((places == 0) & (starts[0] > 0), starts[0], places)  # looked for in the first file
        number = np.searchsorted(starts, places, "right") - 1
        ends = np.minimum(starts[number] + self._file_size_bytes, self.end)
        return places, np.where((number >= 0) & (places < ends), ends, places)

    def _shorts(self, places: Ints) -> Ints:
        """Return the two-byte integer at each place."""
        out = np.zeros(len(places), np.int64)
        blocks = places // _WINDOW_BYTES
        order = np.argsort(blocks, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1) if len(order) else ():
            low, high = int(places[group].min()), int(places[group].max()) + _SIZE.size
            data = np.frombuffer(self._found.read(low, high - low).ljust(high - low, b"\0"), np.uint8)
            at = places[group] - low
            out[group] = np.stack((data[at], data[at + 1]), axis=1).view(_SIZE.format)[:, 0]
        return out
