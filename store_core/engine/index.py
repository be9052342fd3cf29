"""Append to the index, a run of records at a time (store behaviour 9.1; store format 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.derive.index import IndexHeaderState, index_file_name, index_style
from store_core.engine.files import LiveFiles
from store_core.engine.queues import NewEntry
from store_core.engine.tail import RECOVER_FIRST
from store_core.errors import FailedError
from store_core.kernel.derive import index_entries
from store_core.layout import index, paths
from store_core.read.index_sizes import IndexSizes, index_sizes
from store_core.storage.store import Store

_FIRST_ENTRY: Final = 1
_BLOCK_SLOTS: Final = 1024  # read and, if many slots have changed, written together
_FEW_SLOTS: Final = 64
_STORED: Final = np.dtype(f">{index.SLOT.fields[0].type}")
Array = NDArray[Any]


class _Slots:
    """The slots of a file, in memory as far as they were needed: untouched pages of the table take no memory.

    ``read`` returns the bytes of a range of the file; None for a new file. A value beyond ``newest_entry`` counts as none.
    """

    def __init__(self, count: int, newest_entry: int, read: Callable[[int, int], bytes] | None) -> None:
        self.table = np.zeros(count, np.int32)
        self._newest_entry = newest_entry
        self._read = read
        self._loaded: set[int] = set()
        self._changed: list[Array] = []

    def load(self, slots: Array) -> None:
        """Load the slots that are to be changed."""
        self._changed.append(slots)
        if self._read is None:
            return
        for block in {*(slots // _BLOCK_SLOTS).tolist()} - self._loaded:
            first = block * _BLOCK_SLOTS
            count = min(_BLOCK_SLOTS, len(self.table) - first)
            data = self._read(index.slot_at(first), count * index.SLOT.size_bytes)
            values = np.frombuffer(data[: len(data) // _STORED.itemsize * _STORED.itemsize], _STORED).astype(np.int32)
            values[(values < 0) | (values > self._newest_entry)] = index.NO_ENTRY
            self.table[first : first + len(values)] = values
            self._loaded.add(block)

    def take_changed(self) -> list[tuple[int, bytes]]:
        """Return the changed ranges: place in the file and bytes."""
        if not self._changed:
            return []
        slots = np.unique(np.concatenate(self._changed))
        self._changed.clear()
        if len(slots) > _FEW_SLOTS:
            blocks = np.unique(slots // _BLOCK_SLOTS)
            runs = np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1)
            ranges = [(int(run[0]) * _BLOCK_SLOTS, (int(run[-1]) + 1) * _BLOCK_SLOTS) for run in runs]
        else:
            ranges = [(slot, slot + 1) for slot in slots.tolist()]
        return [(index.slot_at(first), self.table[first:end].astype(_STORED).tobytes()) for first, end in ranges]


class IndexWriter:
    """The growing end of the index. ``full_timestamp_ms``: end time of the newest full file after which this writer made another."""

    def __init__(self, store: Store, files: LiveFiles, log_end_phy_offset: int, *, tags_by_default: bool) -> None:
        files.assert_place(paths.INDEX)
        self._store = store
        self._files = files
        sizes = index_sizes(store).sizes or _default_sizes(store)
        if sizes is None:
            raise FailedError(
                "nothing proves how many slots and entries the index files have",
                path=str(store.root / paths.INDEX),
                to_do="name maxHashSlotNum and maxIndexNum with -c",
            )
        self._slot_count, self._entries = sizes.slots, sizes.entries
        style = index_style(store, self._slot_count, self._entries)
        self._counts_every_put = style.counts_every_put
        self._name: str | None = None
        self._header = IndexHeaderState()
        self._is_changed = False  # slots and header in memory are newer than the file's
        if store.index_files:
            self._open_newest(log_end_phy_offset)
        self.with_tags = style.tags or (tags_by_default and not self._holds_entries())
        self.full_timestamp_ms = 0

    def add(self, records: Sequence[tuple[NewEntry, Sequence[int]]], now_ms: int) -> None:
        """Add the key hashes of records, in order. Raises OSError.

        A record without keys also makes the next file if the newest is full. Slots and header reach the file by ``flush``.
        """
        key_row = np.array([row for row, (_, hashes) in enumerate(records) for _ in hashes], np.uint32)
        key_hash = np.array([key_hash for _, hashes in records for key_hash in hashes], np.int32)
        phy_offset = np.array([entry.phy_offset for entry, _ in records], np.int64)
        stored = np.array([entry.store_timestamp_ms for entry, _ in records], np.int64)
        self._roll(now_ms)
        at = 0
        while at < len(key_hash):
            self._roll(now_ms)
            at += self._put(key_row[at:], key_hash[at:], phy_offset, stored)
        if not len(key_row) or key_row[-1] != len(records) - 1:
            self._roll(now_ms)

    def flush(self) -> None:
        """Write the changed slots, then the header that makes the entries valid. Raises OSError."""
        if not self._is_changed:
            return
        for place, data in self._slots.take_changed():
            self._files.write(self._path, place, data)
        self._files.write(self._path, 0, self._header.pack())
        self._is_changed = False

    def _open_newest(self, log_end_phy_offset: int) -> None:
        path = self._store.index_files[-1]
        data = self._store.cache.read(path, 0, index.HEADER.size_bytes)
        if path.stat().st_size != index.file_size_bytes(self._slot_count, self._entries):
            raise FailedError("an index file has the wrong length", path=str(path), to_do=RECOVER_FIRST)
        self._header = IndexHeaderState(**index.HEADER.read(data))
        self._name = path.name
        self._slots = _Slots(
            self._slot_count,
            max(self._header.index_count, _FIRST_ENTRY),
            lambda at, size: self._store.cache.read(path, at, size),
        )
        if self._header.end_phy_offset >= max(log_end_phy_offset, 1) or self._header.index_count > self._entries:
            # A broker would index nothing until the log has grown past it (9.5).
            raise FailedError(
                "the index reaches beyond the end of the log", path=str(path), to_do="run `rmqctl rebuild index` first"
            )

    def _holds_entries(self) -> bool:
        return self._header.index_count > _FIRST_ENTRY or len(self._store.index_files) > 1

    def _roll(self, now_ms: int) -> None:
        """Make the next file if there is none or the newest is full; it starts with the end of the one before (7.1)."""
        if self._name is not None and self._header.index_count < self._entries:
            return
        before = self._header
        name = index_file_name(now_ms)
        if self._name is not None:
            self.flush()
            name = max(name, str(int(self._name) + 1))
            self.full_timestamp_ms = before.end_timestamp_ms
        self._header = IndexHeaderState(
            before.end_timestamp_ms, before.end_timestamp_ms, before.end_phy_offset, before.end_phy_offset
        )
        self._name = name
        self._slots = _Slots(self._slot_count, 0, None)
        self._files.make_file(self._path, index.file_size_bytes(self._slot_count, self._entries), self._header.pack())

    def _put(self, key_row: Array, key_hash: Array, phy_offset: Array, stored: Array) -> int:
        """Write the entries of as many keys as the file has room for; return how many."""
        header = self._header
        first = max(header.index_count, _FIRST_ENTRY)
        # The first entry's seconds count from the time that the header started with; then its own time is the start.
        count = 1 if first == _FIRST_ENTRY else min(len(key_hash), self._entries - first)
        key_row, key_hash = key_row[:count], key_hash[:count]
        begin_ms = header.begin_timestamp_ms
        self._slots.load(key_hash.astype(np.int64) % self._slot_count)
        entries, new_slots = index_entries(self._slots.table, key_row, key_hash, phy_offset, stored, first, begin_ms)
        self._is_changed = True
        self._files.write(self._path, index.entry_at(self._slot_count, first), entries.data)
        is_first = first == _FIRST_ENTRY
        self._header = replace(
            header,
            begin_timestamp_ms=int(stored[key_row[0]]) if is_first else begin_ms,
            begin_phy_offset=int(phy_offset[key_row[0]]) if is_first else header.begin_phy_offset,
            end_timestamp_ms=int(stored[key_row[-1]]),
            end_phy_offset=int(phy_offset[key_row[-1]]),
            used_slots=header.used_slots + (count if self._counts_every_put else new_slots),
            index_count=first + count,
        )
        return count

    @property
    def _path(self) -> str:
        return f"{paths.INDEX}/{self._name}"


def _default_sizes(store: Store) -> IndexSizes | None:
    """Return a broker's defaults for a store without index entries whose files, if it has any, are as long; None for others."""
    default = IndexSizes(index.DEFAULT_SLOTS, index.DEFAULT_ENTRIES)
    length = index.file_size_bytes(default.slots, default.entries)
    is_empty = not index_sizes(store).findings  # a finding means entries that prove no sizes
    return default if is_empty and all(path.stat().st_size == length for path in store.index_files) else None
