"""The entries that a start would append to its queues: what does not fit in memory lies in a scratch file."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.closing import Closing
from store_core.storage.spool import Spool

MOST_HELD_BYTES: Final = 4 << 20  # of all queues of a start
_PART_BYTES: Final = 256  # about what a part takes besides its entries
Entries = NDArray[Any]


class EntrySpool(Closing):
    """Where the queues of one start put what they append. Once they hold too much, all of it goes to one scratch file.

    The file has no name and lies in the system's temporary folder. Raises FailedError where it cannot take more.
    """

    def __init__(self, most_held_bytes: int = MOST_HELD_BYTES) -> None:
        self._most_held_bytes = most_held_bytes
        self._held_bytes = 0
        self._holders: dict[int, AppendedEntries] = {}  # by their identity
        self._spool: Spool | None = None

    def close(self) -> None:
        """The entries that went to the file are gone."""
        if self._spool is not None:
            self._spool.close()

    def note(self, holder: AppendedEntries, entries: Entries) -> None:
        """A queue holds more in memory."""
        self._holders[id(holder)] = holder
        self._held_bytes += entries.nbytes + _PART_BYTES
        if self._held_bytes > self._most_held_bytes:
            for each in self._holders.values():
                each.put_away()
            self._holders.clear()
            self._held_bytes = 0

    def append(self, entries: bytes) -> int:
        """Write entries behind the file's end; gives the position."""
        if self._spool is None:
            self._spool = Spool()
        return self._spool.append(entries)

    def read(self, at: int, size_bytes: int) -> bytes:
        """What lies at a position that ``append`` gave."""
        return self._spool.read(at, size_bytes) if self._spool is not None else b""


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries that follow each other: in memory, or at a position of the scratch file."""

    count: int
    entries: Entries | None
    at: int


class AppendedEntries:
    """One queue's appended entries, numbered from 0. Those in memory are the newest."""

    def __init__(self, dtype: np.dtype[Any], spool: EntrySpool) -> None:
        self._dtype = dtype
        self._spool = spool
        self._parts: list[_Part] = []
        self._ends: list[int] = []  # entries in all parts up to and with this one

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def add(self, entries: Entries) -> None:
        """Append entries, which must not be changed afterwards."""
        self._add(_Part(len(entries), entries, -1))
        self._spool.note(self, entries)

    def cut(self, keep: int) -> None:
        """Forget all but the first ``keep``."""
        while len(self) > keep:
            part = self._parts.pop()
            count = keep - (self._ends.pop() - part.count)
            if count > 0:
                entries = part.entries[:count] if part.entries is not None else None
                self._add(_Part(count, entries, part.at))

    def overlay(self, out: Entries, first: int) -> None:
        """Write the entries from number ``first`` on (which may lie in front of them) over ``out``."""
        for number in range(bisect_right(self._ends, max(first, 0)), len(self._parts)):
            part = self._parts[number]
            place = self._ends[number] - part.count - first
            if place >= len(out):
                return
            skipped = max(-place, 0)
            wanted = self._entries(part, skipped, min(part.count, len(out) - place))
            out[place + skipped : place + skipped + len(wanted)] = wanted

    def digest(self) -> bytes:
        """Return what tells these entries from others, however they were added."""
        told = sha256()
        for part in self._parts:
            told.update(self._entries(part, 0, part.count).tobytes())
        return told.digest()

    def put_away(self) -> None:
        """Have the scratch file hold what is in memory."""
        held: list[Entries] = []
        while self._parts and (entries := self._parts[-1].entries) is not None:
            self._parts.pop()
            self._ends.pop()
            held.append(entries)
        if held:
            data = b"".join(entries.tobytes() for entries in reversed(held))
            self._add(_Part(len(data) // self._dtype.itemsize, None, self._spool.append(data)))

    def _add(self, part: _Part) -> None:
        self._ends.append(len(self) + part.count)
        self._parts.append(part)

    def _entries(self, part: _Part, start: int, stop: int) -> Entries:
        if part.entries is not None:
            return part.entries[start:stop]
        size = self._dtype.itemsize
        return np.frombuffer(self._spool.read(part.at + start * size, (stop - start) * size), self._dtype)
