"""Index files: their sizes, chains and entries, and the broker's query over them (store format 7; store behaviour 9.2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from store_core.closing import Closing
from store_core.errors import UnreadableError
from store_core.findings import Finding, finding
from store_core.kernel.point import Sliceable, index_offsets
from store_core.layout import index as layout
from store_core.storage.files import FileCache, unreadable
from store_core.storage.store import Store

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ANSWER: Final = 64  # a broker's maxMsgsNumBatch: it never gives more for one query
END_OF_TIME_MS: Final = (1 << 63) - 1
_PROOF_ENTRIES: Final = 64
_RATIOS: Final = (layout.SLOTS_TO_ENTRIES, 1, 2, 3, 5, 8, 10)  # entries a slot that are tried, the default first
_DUMP_ENTRIES: Final = 1 << 14

_unpack_header: Final = layout.HEADER.struct.unpack
_unpack_slot: Final = layout.SLOT.struct.unpack
_unpack_entry: Final = layout.ENTRY.struct.unpack


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """How many slots and entry places every index file has; ``findings`` where that had to be assumed."""

    slots: int
    entries: int
    findings: tuple[Finding, ...] = ()


class IndexHeader(NamedTuple):
    """A file's header; times in ms. ``index_count`` is the next free entry number, at least 1."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_phy_offset: int
    end_phy_offset: int
    used_slots: int
    index_count: int


class IndexRow(NamedTuple):
    """One entry, with the file it is in and the slot it hangs on."""

    file: str
    slot: int
    entry: int
    key_hash: int
    phy_offset: int
    store_timestamp_ms: int
    previous: int


class BrokenChainError(Exception):
    """A chain of an index file runs in a circle, forwards, or outside the file. Raised and caught inside ``read``."""


class IndexFile:
    """One index file. What lies behind a short file's end counts as zeros, as a broker maps it."""

    def __init__(self, path: Path, sizes: IndexSizes) -> None:
        self.path = path
        self.sizes = sizes
        self._data: Sliceable = _OnDisk(path)
        self.size_bytes = len(self._data)

    def close(self) -> None:
        """Let go of the file."""
        self._data = b""

    @property
    def header(self) -> IndexHeader:
        """The header as it is now: a live broker changes it."""
        if self.size_bytes < layout.HEADER.size_bytes:
            return IndexHeader(0, 0, 0, 0, 0, 1)
        header = IndexHeader(*_unpack_header(self._data[: layout.HEADER.size_bytes]))
        return header if header.index_count > 0 else header._replace(index_count=1)

    @property
    def last_entry(self) -> int:
        """Number of the newest entry; 0 without any. Never more than the file has room for."""
        return min(self.header.index_count, self.sizes.entries) - 1

    def slot_value(self, slot: int) -> int:
        """Number of the newest entry that hangs on a slot; 0 or less: none."""
        at = layout.slot_at(slot)
        end = at + layout.SLOT.size_bytes
        return int(_unpack_slot(self._data[at:end])[0]) if end <= self.size_bytes else 0

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """(key hash, phy_offset, seconds, previous) of an entry place; zeros behind the file's end."""
        at = layout.entry_at(self.sizes.slots, number)
        end = at + layout.ENTRY.size_bytes
        return _unpack_entry(self._data[at:end]) if number >= 0 and end <= self.size_bytes else (0, 0, 0, 0)

    def chain(self, key_hash: int) -> Iterator[tuple[int, int]]:
        """(phy_offset, seconds) of every entry with this hash, newest first.

        Raises BrokenChainError where the chain cannot go on although it should.
        """
        count = self.header.index_count
        number = self.slot_value(key_hash % self.sizes.slots) if count > 1 else 0
        if number > count:
            raise BrokenChainError
        while number > 0:
            found_hash, phy_offset, seconds, previous = self.entry(number)
            if previous >= number or found_hash % self.sizes.slots != key_hash % self.sizes.slots:
                raise BrokenChainError
            if found_hash == key_hash:
                yield phy_offset, seconds
            number = previous

    def select(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> tuple[int, list[int]]:
        """What a broker takes from this file: its begin time, ms, and offsets, newest first (``kernel.point``)."""
        return index_offsets(self._data, self.sizes.slots, key_hash, begin_ms, end_ms, limit)

    def rows(self, first: int = 1) -> Iterator[IndexRow]:
        """Every entry from a number on, in the order they were written."""
        begin = self.header.begin_timestamp_ms
        size = layout.ENTRY.size_bytes
        last = self.last_entry
        name = self.path.name
        for start in range(max(first, 1), last + 1, _DUMP_ENTRIES):
            at = layout.entry_at(self.sizes.slots, start)
            data = self._data[at : at + min(_DUMP_ENTRIES, last + 1 - start) * size]
            whole = data[: len(data) // size * size]
            for number, (key_hash, phy_offset, seconds, previous) in enumerate(
                layout.ENTRY.struct.iter_unpack(whole), start
            ):
                slot = key_hash % self.sizes.slots
                yield IndexRow(name, slot, number, key_hash, phy_offset, begin + seconds * 1000, previous)

    def columns(self) -> Iterator[tuple[int, NDArray[np.void]]]:
        """As ``rows``, in bulk: (number of the first entry, structured array of ``layout.index.ENTRY``) by the chunk."""
        import numpy as np

        size = layout.ENTRY.size_bytes
        for start in range(1, self.last_entry + 1, _DUMP_ENTRIES):
            at = layout.entry_at(self.sizes.slots, start)
            data = self._data[at : at + min(_DUMP_ENTRIES, self.last_entry + 1 - start) * size]
            if len(data) < size:
                return
            yield start, np.frombuffer(data, layout.ENTRY.dtype, len(data) // size)

    def slot_rows(self, slot: int) -> Iterator[IndexRow]:
        """Every entry of one slot's chain, newest first; ends where the chain is broken."""
        begin = self.header.begin_timestamp_ms
        number = self.slot_value(slot) if 0 <= slot < self.sizes.slots else 0
        while 0 < number <= self.last_entry:
            key_hash, phy_offset, seconds, previous = self.entry(number)
            yield IndexRow(self.path.name, slot, number, key_hash, phy_offset, begin + seconds * 1000, previous)
            number = previous if previous < number else 0


class _OnDisk:
    """A file's bytes, read when asked for; empty if it has vanished. Raises FailedError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = FileCache(capacity=1)
        try:
            self._size_bytes = os.fstat(self._files.descriptor(path)).st_size
        except FileNotFoundError:
            self._size_bytes = 0
        except OSError as error:
            raise unreadable(path, error) from error

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size_bytes)
        return self._files.read(self._path, start, stop - start).ljust(stop - start, b"\0")  # cut short meanwhile


class Index(Closing):
    """All index files of a store, in order of their names, open until closed."""

    def __init__(self, store: Store) -> None:
        self.sizes = index_sizes(store)
        self.files = tuple(IndexFile(path, self.sizes) for path in store.index_files)
        self._newest_first = self.files[::-1]

    def close(self) -> None:
        for file in self.files:
            file.close()

    @property
    def last_header(self) -> IndexHeader | None:
        """The newest file's header; None without files."""
        return self.files[-1].header if self.files else None

    def query(self, key_hash: int, limit: int, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS) -> list[int]:
        """Record offsets a broker's index gives for a hash, newest first; nothing is verified (store behaviour 9.2)."""
        limit = min(limit, MAX_ANSWER)
        found: list[int] = []
        for file in self._newest_first:
            begin, offsets = file.select(key_hash, begin_ms, end_ms, limit - len(found))
            found += offsets
            if begin < begin_ms or len(found) >= limit:
                break
        return found


def index_sizes(store: Store) -> IndexSizes:
    """Slots and entry places of a store's index files: configured, or told by the length and proven by the chains.

    The default proportion of 1 : 4 is tried first. Where nothing can be proven there is a finding (S005), unless there
    is nothing to read either.
    """
    slots, entries = store.settings.index_slots, store.settings.index_entries
    if slots and entries:
        return IndexSizes(slots, entries)
    lengths = [(path, size) for path in store.index_files if (size := _length(path)) > layout.HEADER.size_bytes]
    for path, length in lengths:
        for candidate in _candidates(length, slots, entries):
            if _proves(path, candidate):
                return candidate
    for _, length in lengths:
        for candidate in islice(_candidates(length, slots, entries), 1):
            return IndexSizes(candidate.slots, candidate.entries, _assumed(store, candidate) if lengths else ())
    assumed = IndexSizes(slots or layout.DEFAULT_SLOTS, entries or layout.DEFAULT_ENTRIES)
    return IndexSizes(assumed.slots, assumed.entries, _assumed(store, assumed) if lengths else ())


def _assumed(store: Store, sizes: IndexSizes) -> tuple[Finding, ...]:
    """A finding, unless every file is empty and nothing hangs on the sizes."""
    files = [IndexFile(path, sizes) for path in store.index_files]
    is_empty = all(file.header.index_count <= 1 for file in files)
    for file in files:
        file.close()
    text = f"assumed {sizes.slots} slots and {sizes.entries} entries, which the chains do not prove"
    return () if is_empty else (finding("S005", text, file="index"),)


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _candidates(length: int, slots: int | None, entries: int | None) -> Iterator[IndexSizes]:
    """Numbers of slots and entries that give a file exactly this length."""
    room = length - layout.HEADER.size_bytes
    if slots:
        left = room - slots * layout.SLOT.size_bytes
        if left > 0 and left % layout.ENTRY.size_bytes == 0:
            yield IndexSizes(slots, left // layout.ENTRY.size_bytes)
    elif entries:
        left = room - entries * layout.ENTRY.size_bytes
        if left > 0 and left % layout.SLOT.size_bytes == 0:
            yield IndexSizes(left // layout.SLOT.size_bytes, entries)
    else:
        for ratio in _RATIOS:
            of_one_slot = layout.SLOT.size_bytes + ratio * layout.ENTRY.size_bytes
            if room > 0 and room % of_one_slot == 0:
                yield IndexSizes(room // of_one_slot, room // of_one_slot * ratio)


def _proves(path: Path, sizes: IndexSizes) -> bool:
    """Whether the newest entries of a file hang where these numbers say: each on its own slot's chain, or atop it.

    A file that cannot be read proves nothing; another may.
    """
    try:
        file = IndexFile(path, sizes)
    except UnreadableError:
        return False
    try:
        last = file.last_entry
        if last < 1 or file.slot_value(file.entry(last)[0] % sizes.slots) != last:
            return False
        for number in range(max(1, last - _PROOF_ENTRIES), last + 1):
            key_hash, _, seconds, previous = file.entry(number)
            newest = file.slot_value(key_hash % sizes.slots)
            older = file.entry(previous)[0] if previous else key_hash
            if key_hash < 0 or seconds < 0 or not number <= newest <= last or not 0 <= previous < number:
                return False
            if older % sizes.slots != key_hash % sizes.slots:
                return False
        return True
    except UnreadableError:
        return False
    finally:
        file.close()
