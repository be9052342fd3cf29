"""Model a batch queue as a broker has it in memory; its entries contain their numbers, found by binary search (7, 11.3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from ctypes import c_int64
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from store_core.broker.misnamed_queue_files import in_turn, off_grid
from store_core.broker.queue_recovery import ANYWHERE, Entries, Ints, Mask, QueueState
from store_core.kernel.entries import GoodRun
from store_core.layout import queue as layout

if TYPE_CHECKING:
    from store_core.broker.pending_entries import EntrySpool
    from store_core.broker.versions import Behaviour
    from store_core.storage.sequence import Segment, SegmentSequence
    from store_core.storage.store import QueueKey


_HIGHEST: Final = (1 << 63) - 1


class BatchLookup:
    """The files of a queue, from which the broker chooses one by its first number.

    Args:
        numbers_of: returns the number of the first message of each entry of the file that starts at a position.
        firsts: the first of these numbers for each file that holds entries, in order.
        newest: the start of the newest file, which the broker looks at before the others.
        asked: the numbers that consumers ask for.
    """

    def __init__(self, numbers_of: Callable[[int], Ints], firsts: Mapping[int, int], newest: int, asked: range) -> None:
        self._numbers_of = numbers_of
        self._asked = asked
        self._ranges: dict[int, range] = {}
        self._found: dict[int, Mask | None] = {}
        by_first = {first: start for start, first in firsts.items()}  # of equal numbers the later file counts
        rising = [*sorted(by_first), _HIGHEST]
        for first, end in pairwise(rising):
            start = by_first[first]
            if start == newest:
                self._ranges[start] = range(first, _HIGHEST)
            else:
                self._ranges[start] = range(first, min(end, firsts.get(newest, _HIGHEST)))

    def found(self, start: int) -> Mask | None:
        """Return the mask of the entries of the file at ``start`` that are found, or None if all are."""
        if start not in self._found:
            searched = self._ranges.get(start, range(0))
            asked = range(max(searched.start, self._asked.start), min(searched.stop, self._asked.stop))
            mask = found_by_halves(self._numbers_of(start), asked)
            self._found[start] = None if mask.all() else mask
        return self._found[start]


def found_by_halves(numbers: Ints, asked: range) -> Mask:
    """Return mask[n] of the entries, with first ``numbers``[n], at which a search for a number of ``asked`` ends."""
    if len(numbers) and bool((numbers[1:] > numbers[:-1]).all()):
        ends = np.minimum(np.append(numbers[1:], _HIGHEST), asked.stop)
        rising: Mask = np.maximum(numbers, asked.start) < ends
        return rising
    found = np.zeros(len(numbers), np.bool_)
    last = len(numbers) - 1
    # All searches run at once: a column of ``steps`` is the searches for [low, high) among the entries left to right.
    steps = np.array([[0], [last], [asked.start], [asked.stop]], np.int64)
    while steps.size:
        left, right, low, high = steps = steps[:, (steps[0] <= steps[1]) & (steps[2] < steps[3])]
        middle = (left + right) // 2
        number = numbers[middle]
        found[middle[(low <= number) & (number < high)]] = True
        below = np.stack((left, middle - 1, low, np.minimum(high, number)))
        above = np.stack((middle, right, np.maximum(low, number + (number < _HIGHEST)), high))
        is_end = middle == left
        at, _, low, high = above[:, is_end & (above[2] < above[3])]
        following = np.where(at < last, numbers[np.minimum(at + 1, last)], _HIGHEST)
        found[at[low < np.minimum(high, following)]] = True
        found[at[np.maximum(low, following) < high] + 1] = True
        steps = np.concatenate((below, above[:, ~is_end]), axis=1)
    return found


class BatchQueueState(QueueState):
    """A queue of 46-byte entries, which contain their numbers: the position does not give them (store format 6.6)."""

    layout = layout.BATCH_ENTRY

    _min_offset = -1
    _max_offset = 0
    _lookup: BatchLookup | None = None
    _names: dict[int, int] | None = None
    _mixed: tuple[int, bytes] | None = None  # a file's position, and its bytes

    @classmethod
    def over(
        cls,
        key: QueueKey,
        file_size_bytes: int,
        behaviour: Behaviour,
        found: SegmentSequence,
        files: list[Segment],
        *,
        spool: EntrySpool,
    ) -> BatchQueueState:
        """Return a queue over files as they are loaded.

        A broker reads them in order, whatever their names: where the names do not follow each other, the order gives the position.
        """
        names = [file.phy_offset for file in files]
        if off_grid(found, files, file_size_bytes) is None:
            return cls(key, file_size_bytes, behaviour, {key: found}, names, spool=spool)
        starts = [n * file_size_bytes for n in range(len(files))]
        turns = in_turn(found, files, file_size_bytes)
        state = cls(key, file_size_bytes, behaviour, {key: turns}, starts, spool=spool)
        state._names = dict(zip(starts, names, strict=True))
        return state

    def name_of(self, start: int) -> int:
        if self._names is None:
            return start
        if start not in self._names:  # the start made this file
            last = max(self._names)
            self._names[start] = self._names[last] + start - last
        return self._names[start]

    def entries(self, start: int, end: int) -> Entries:
        if self._mixed is None or not self._mixed[0] <= start < self._mixed[0] + self.file_size_bytes:
            return super().entries(start, end)
        file, data = self._mixed
        whole = (min(end - file, len(data)) - (start - file)) // self.entry_size_bytes
        return np.frombuffer(data, self.layout.dtype, whole, start - file)

    def truncate(self, phy_offset: int) -> None:
        """Truncate as any queue; where files overlap, keep the bytes of entries appended across the file's own."""
        last, at = self.starts[-1] if self.starts else 0, self._appended_at
        if at is not None and self._appended_in == last and (at - last) % self.entry_size_bytes:
            added = super().entries(at, at + len(self._appended) * self.entry_size_bytes).tobytes()
            found = self._found
            before = found.read(last, self.file_size_bytes) if found is not None else b""
            data = bytearray(before.ljust(self.file_size_bytes, b"\0"))
            data[at - last : at - last + len(added)] = added
            self._mixed = last, bytes(data[: self.file_size_bytes])
            self._forget_appended_after(0)
        super().truncate(phy_offset)

    @property
    def min_offset(self) -> int:
        return self._min_offset

    @property
    def max_offset(self) -> int:
        return self._max_offset

    def _good_run(self, entries: Entries, *, below: int = ANYWHERE, highest: int = -1, room: int = 0) -> GoodRun:
        """Return the good run, which an impossible number ends too."""
        numbered = (entries["queue_offset"] >= 0) & (entries["batch_size"] > 0)
        count = len(numbered) if numbered.all() else int(np.argmin(numbered))
        return super()._good_run(entries[:count], below=below, highest=highest, room=room)

    def _end_of(self, entry: Any) -> int:
        return int(entry["phy_offset"])

    def _recovered(self) -> None:
        """Set min from the first entry and max from the last; if the last file has no entry, from the file before it."""
        self._lookup = None
        self._min_offset, self._max_offset = -1, 0
        if not self.starts:
            return
        size = self.entry_size_bytes
        if self._first_file_end() - self.starts[0] >= size:
            self._min_offset = self._first_number(self.starts[0])
        for file in self.starts[:-3:-1]:
            end = file + self.written_in(file)
            if end - file >= size:
                self._max_offset = _next_queue_offset(self.entries(end - size, end)[0])
                break

    @property
    def hides_entries(self) -> bool:
        return True

    def reaches(self, position: int, entries: Entries) -> Mask:
        """Return the mask of the entries at which a search for a number from min to max ends."""
        if self._lookup is None:
            width = self.entry_size_bytes
            firsts = {start: self._first_number(start) for start in self.starts if self.written_in(start) >= width}
            asked = range(max(self.min_offset, 0), self.max_offset)
            self._lookup = BatchLookup(self._numbers, firsts, self.starts[-1], asked)
        start = self.starts[bisect_right(self.starts, position) - 1]
        mask = self._lookup.found(start)
        if mask is None:
            return np.ones(len(entries), np.bool_)
        first = (position - start) // self.entry_size_bytes
        return mask[first : first + len(entries)]

    def _numbers(self, start: int) -> Ints:
        """Return the number of the first message of each entry of a file."""
        return self.entries(start, start + self.written_in(start))["queue_offset"].astype(np.int64)

    def _first_number(self, start: int) -> int:
        return int(self.entries(start, start + self.entry_size_bytes)["queue_offset"][0])

    def put_batches(self, entries: Entries) -> None:
        """Append whole entries in the order of dispatch; skip repeats, which lie at or before the queue's end."""
        phy_offset = entries["phy_offset"]
        numbered = (entries["queue_offset"] >= 0) & (entries["batch_size"] >= 0)
        ends_so_far = np.maximum.accumulate(np.where(numbered, phy_offset, -1))  # the end after each entry
        entries = entries[numbered & (phy_offset > np.maximum(np.r_[-1, ends_so_far[:-1]], self.end_phy_offset))]
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
            self._min_offset = _next_queue_offset(entry)
            self._lookup = None
        return ""


def _next_queue_offset(entry: Any) -> int:
    """Return the number after an entry's last message, as Java adds: after the largest number comes the lowest."""
    return c_int64(int(entry["queue_offset"]) + int(entry["batch_size"])).value
