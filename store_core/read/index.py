"""Read index files, their chains and entries, and answer queries as a broker does (store format 7; store behaviour 9.2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from store_core.closing import Closing
from store_core.codec.times import END_OF_TIME_MS
from store_core.kernel.point import Sliceable, index_offsets
from store_core.kernel.text import RowBatch, numbers, ready, same
from store_core.layout import index as layout
from store_core.read.index_sizes import IndexSizes, index_sizes
from store_core.storage.files import FileCache, unreadable
from store_core.storage.store import Store

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ANSWER: Final = 64  # a broker's maxMsgsNumBatch: it returns no more for a query
_DUMP_ENTRIES: Final = 1 << 14
_MOST_MS: Final = 1 << 62

_unpack_header: Final = layout.HEADER.struct.unpack
_unpack_slot: Final = layout.SLOT.struct.unpack
_unpack_entry: Final = layout.ENTRY.struct.unpack


class IndexHeader(NamedTuple):
    """A file's header; times in ms. ``index_count`` is the next free entry number, at least 1."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_phy_offset: int
    end_phy_offset: int
    used_slots: int
    index_count: int


class IndexRow(NamedTuple):
    """An entry with its file and slot."""

    file: str
    slot: int
    entry: int
    key_hash: int
    phy_offset: int
    store_timestamp_ms: int
    previous: int


def read_header(path: Path) -> IndexHeader:
    """Return the header of an index file, which does not depend on the file's sizes. Raises FailedError where it cannot be read."""
    return _header_of(_OnDisk(path))


def _header_of(data: Sliceable) -> IndexHeader:
    if len(data) < layout.HEADER.size_bytes:
        return IndexHeader(0, 0, 0, 0, 0, 1)
    header = IndexHeader(*_unpack_header(data[: layout.HEADER.size_bytes]))
    return header if header.index_count > 0 else header._replace(index_count=1)


class BrokenChainError(Exception):
    """A chain of an index file that is circular, runs forwards or leaves the file. Raised and caught inside ``read``."""


class IndexFile:
    """An index file. Bytes after a short file's end count as zeros, because a broker maps the whole file."""

    def __init__(self, path: Path, sizes: IndexSizes) -> None:
        self.path = path
        self.sizes = sizes
        self._data: Sliceable = _OnDisk(path)
        self.size_bytes = len(self._data)

    def close(self) -> None:
        """Drop the file's bytes or descriptor."""
        self._data = b""

    @property
    def header(self) -> IndexHeader:
        """The header as it is now, because a live broker changes it."""
        return _header_of(self._data)

    @property
    def last_entry(self) -> int:
        """Number of the newest entry, at most as many as the file has room for; 0 without entries."""
        return min(self.header.index_count, self.sizes.entries) - 1

    def slot_value(self, slot: int) -> int:
        """Return the number of the newest entry of a slot's chain; 0 or less: none."""
        at = layout.slot_at(slot)
        end = at + layout.SLOT.size_bytes
        return int(_unpack_slot(self._data[at:end])[0]) if end <= self.size_bytes else 0

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (key hash, phy_offset, seconds, previous) of an entry place; zeros after the file's end."""
        at = layout.entry_at(self.sizes.slots, number)
        end = at + layout.ENTRY.size_bytes
        return _unpack_entry(self._data[at:end]) if number >= 0 and end <= self.size_bytes else (0, 0, 0, 0)

    def chain(self, key_hash: int) -> Iterator[tuple[int, int]]:
        """Yield (phy_offset, seconds) of every entry with this hash, newest first.

        Raises BrokenChainError if a link of the chain is wrong.
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
        """Return the answer of a broker from this file: its start time in ms, and offsets, newest first (``kernel.point``)."""
        return index_offsets(self._data, self.sizes.slots, key_hash, begin_ms, end_ms, limit)

    def rows(self) -> Iterator[IndexRow]:
        """Yield every entry in the order of writing."""
        begin_ms = self.header.begin_timestamp_ms
        for start, entries in self.columns():
            yield from self._rows(start, entries, begin_ms)

    def _rows(self, start: int, entries: NDArray[np.void], begin: int) -> Iterator[IndexRow]:
        name, slots = self.path.name, self.sizes.slots
        for number, (key_hash, phy_offset, seconds, previous) in enumerate(entries.tolist(), start):
            yield IndexRow(name, key_hash % slots, number, key_hash, phy_offset, begin + seconds * 1000, previous)

    def batches(self, most: int | None = None) -> Iterator[RowBatch]:
        """Yield the rows of ``rows`` in batches, at most ``most`` entries in all."""
        import numpy as np

        begin_ms, remaining = self.header.begin_timestamp_ms, most
        for start, stored in self.columns():
            entries = stored[:remaining]
            if remaining is not None:
                remaining -= len(entries)
            if not len(entries):
                return
            hashes, times = entries["key_hash"].astype(np.int64), entries["seconds"].astype(np.int64) * 1000
            columns = {
                "file": same(self.path.name),
                "slot": numbers(hashes % self.sizes.slots),
                "entry": numbers(np.arange(start, start + len(entries))),
                "key_hash": numbers(hashes),
                "phy_offset": numbers(entries["phy_offset"]),
                # With a damaged header's time the sums may not fit into int64.
                "store_timestamp_ms": numbers(times + begin_ms)
                if abs(begin_ms) < _MOST_MS
                else ready([begin_ms + time for time in times.tolist()]),
                "previous": numbers(entries["previous"]),
            }
            yield RowBatch(columns, len(entries), partial(self._dicts, start, entries, begin_ms))

    def _dicts(self, start: int, entries: NDArray[np.void], begin: int) -> Iterator[dict[str, Any]]:
        return (row._asdict() for row in self._rows(start, entries, begin))

    def columns(self) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yield the entries in chunks: (number of the first entry, structured array of ``layout.index.ENTRY``)."""
        import numpy as np

        size = layout.ENTRY.size_bytes
        for start in range(1, self.last_entry + 1, _DUMP_ENTRIES):
            at = layout.entry_at(self.sizes.slots, start)
            data = self._data[at : at + min(_DUMP_ENTRIES, self.last_entry + 1 - start) * size]
            if len(data) < size:
                return
            yield start, np.frombuffer(data, layout.ENTRY.dtype, len(data) // size)

    def slot_rows(self, slot: int) -> Iterator[IndexRow]:
        """Yield every entry of one slot's chain, newest first; ends at a broken link."""
        begin_ms = self.header.begin_timestamp_ms
        number = self.slot_value(slot) if 0 <= slot < self.sizes.slots else 0
        while 0 < number <= self.last_entry:
            key_hash, phy_offset, seconds, previous = self.entry(number)
            yield IndexRow(self.path.name, slot, number, key_hash, phy_offset, begin_ms + seconds * 1000, previous)
            number = previous if previous < number else 0


class _OnDisk:
    """A file's bytes, read on access; empty if it has vanished. Raises FailedError where it cannot be read."""

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
        return self._files.read(self._path, start, stop - start).ljust(stop - start, b"\0")  # shorter by now


class Index(Closing):
    """All index files of a store in order of their names, open until closed; none where their sizes are not known."""

    def __init__(self, store: Store) -> None:
        proven = index_sizes(store)
        self.sizes, self.findings = proven.sizes, proven.findings
        self.files = tuple(IndexFile(path, proven.sizes) for path in store.index_files) if proven.sizes else ()
        self._newest_first = self.files[::-1]
        self._newest = store.index_files[-1] if store.index_files else None

    def close(self) -> None:
        for file in self.files:
            file.close()

    @property
    def last_header(self) -> IndexHeader | None:
        """The newest file's header, which needs no sizes; None without files."""
        return read_header(self._newest) if self._newest else None

    def query(self, key_hash: int, limit: int, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS) -> list[int]:
        """Return the record offsets that a broker's index has for a hash, newest first; no record is read (store behaviour 9.2)."""
        limit = min(limit, MAX_ANSWER)
        found: list[int] = []
        for file in self._newest_first:
            file_begin_ms, offsets = file.select(key_hash, begin_ms, end_ms, limit - len(found))
            found += offsets
            if file_begin_ms < begin_ms or len(found) >= limit:
                break
        return found
