"""Keep the entries that a start would append to its queues, in memory or in a scratch file."""

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
_PART_BYTES: Final = 256  # rough overhead of a part over its entries
Entries = NDArray[Any]


class EntrySpool(Closing):
    """The memory and scratch file for the entries that the queues of one start append.

    Above a limit all entries in memory go to the file. It has no name and is in the system's temporary folder.

    Raises:
        FailedError: the file cannot take more.
    """

    def __init__(self, most_held_bytes: int = MOST_HELD_BYTES) -> None:
        self._most_held_bytes = most_held_bytes
        self._held_bytes = 0
        self._holders: dict[int, AppendedEntries] = {}  # by identity
        self._spool: Spool | None = None

    def close(self) -> None:
        """Discard the entries in the file."""
        if self._spool is not None:
            self._spool.close()

    def note(self, holder: AppendedEntries, entries: Entries) -> None:
        """Count ``entries`` that a queue added in memory; above the limit, move all queues' entries to the file."""
        self._holders[id(holder)] = holder
        self._held_bytes += entries.nbytes + _PART_BYTES
        if self._held_bytes > self._most_held_bytes:
            for appended in self._holders.values():
                appended.put_away()
            self._holders.clear()
            self._held_bytes = 0

    def append(self, entries: bytes) -> int:
        """Append entries to the file and return their position in it."""
        if self._spool is None:
            self._spool = Spool()
        return self._spool.append(entries)

    def read(self, at: int, size_bytes: int) -> bytes:
        """Read ``size_bytes`` at a position that ``append`` returned."""
        return self._spool.read(at, size_bytes) if self._spool is not None else b""


@dataclass(frozen=True, slots=True)
class _Part:
    """A run of entries, in memory or at a position of the scratch file."""

    count: int
    entries: Entries | None
    at: int


class AppendedEntries:
    """One queue's appended entries, numbered from 0. Those in memory are the newest."""

    def __init__(self, dtype: np.dtype[Any], spool: EntrySpool) -> None:
        self._dtype = dtype
        self._spool = spool
        self._parts: list[_Part] = []
        self._ends: list[int] = []  # number of entries up to the end of each part

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
        """Write the entries from number ``first`` on over ``out``; ``first`` may be negative."""
        for number in range(bisect_right(self._ends, max(first, 0)), len(self._parts)):
            part = self._parts[number]
            place = self._ends[number] - part.count - first
            if place >= len(out):
                return
            skipped = max(-place, 0)
            wanted = self._entries(part, skipped, min(part.count, len(out) - place))
            out[place + skipped : place + skipped + len(wanted)] = wanted

    def digest(self) -> bytes:
        """Return a digest of the entries that does not depend on how they were added."""
        sha = sha256()
        for part in self._parts:
            sha.update(self._entries(part, 0, part.count).tobytes())
        return sha.digest()

    def put_away(self) -> None:
        """Move the entries in memory to the scratch file."""
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
