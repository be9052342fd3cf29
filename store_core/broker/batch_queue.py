"""One batch queue as a broker has it in memory: its entries tell their numbers, and a message is looked for by halves (7, 11.3)."""

from __future__ import annotations

from bisect import bisect_right
from ctypes import c_int64
from typing import Any

import numpy as np

from store_core.broker.batch_lookup import BatchLookup
from store_core.broker.queue_recovery import ANYWHERE, Entries, Ints, Mask, QueueState
from store_core.kernel.entries import GoodRun
from store_core.layout import queue as layout


class BatchQueueState(QueueState):
    """A queue of 46-byte entries: an entry's place says nothing of its numbers, which stand in it (store format 6.6)."""

    layout = layout.BATCH_ENTRY

    _min_offset = -1
    _max_offset = 0
    _lookup: BatchLookup | None = None

    @property
    def min_offset(self) -> int:
        return self._min_offset

    @property
    def max_offset(self) -> int:
        return self._max_offset

    def _good_run(self, entries: Entries, *, below: int = ANYWHERE, highest: int = -1, room: int = 0) -> GoodRun:
        """Numbers that can not be end it, too."""
        numbered = (entries["queue_offset"] >= 0) & (entries["batch_size"] > 0)
        count = len(numbered) if numbered.all() else int(np.argmin(numbered))
        return super()._good_run(entries[:count], below=below, highest=highest, room=room)

    def _end_of(self, entry: Any) -> int:
        return int(entry["phy_offset"])

    def _recovered(self) -> None:
        """First and last entry tell min and max; a last file without entries leaves it to the one before."""
        self._lookup = None
        self._min_offset, self._max_offset = -1, 0
        if not self.starts:
            return
        size = self.entry_size_bytes
        if self._first_file_end() > self.starts[0]:
            self._min_offset = self._first_number(self.starts[0])
        if self._in_last_file or len(self.starts) > 1:
            last = self.entries(self.end - size, self.end)[0]
            self._max_offset = _number_behind(last)

    @property
    def hides_entries(self) -> bool:
        return True

    def reaches(self, position: int, entries: Entries) -> Mask:
        """Those that a search for one of the numbers from min to max ends at."""
        if self._lookup is None:
            firsts = {start: self._first_number(start) for start in self.starts if start < self.end}
            asked = range(max(self.min_offset, 0), self.max_offset)
            self._lookup = BatchLookup(self._numbers, firsts, self.starts[-1], asked)
        start = self.starts[bisect_right(self.starts, position) - 1]
        mask = self._lookup.found(start)
        if mask is None:
            return np.ones(len(entries), np.bool_)
        first = (position - start) // self.entry_size_bytes
        return mask[first : first + len(entries)]

    def _numbers(self, start: int) -> Ints:
        """The first message's number of each entry of a file."""
        return self.entries(start, min(self.end, start + self.file_size_bytes))["queue_offset"].astype(np.int64)

    def _first_number(self, start: int) -> int:
        return int(self.entries(start, start + self.entry_size_bytes)["queue_offset"][0])

    def put_batches(self, entries: Entries) -> None:
        """Append whole entries in the order of dispatch; what lies at or in front of the queue's end is a repeat."""
        phy_offset = entries["phy_offset"]
        numbered = (entries["queue_offset"] >= 0) & (entries["batch_size"] >= 0)
        ends = np.maximum.accumulate(np.where(numbered, phy_offset, -1))  # behind each of them
        entries = entries[numbered & (phy_offset > np.maximum(np.r_[-1, ends[:-1]], self.end_phy_offset))]
        if len(entries):
            if not self.starts:
                self.starts.append(0)
                self._in_last_file = 0
            self._open_next_file()
            self._write(entries)
            self.end_phy_offset = self._end_of(entries[-1])
        self._recovered()

    def correct_min(self, log_min_phy_offset: int) -> str:
        self._recovered()
        if not self.starts:
            return ""
        for entry in self.entries(self.starts[0], self._first_file_end()):
            if entry["phy_offset"] >= log_min_phy_offset:
                break
            self._min_offset = _number_behind(entry)
            self._lookup = None
        return ""


def _number_behind(entry: Any) -> int:
    """The number that follows an entry's last message, as Java adds: behind the largest number comes the lowest."""
    return c_int64(int(entry["queue_offset"]) + int(entry["batch_size"])).value
