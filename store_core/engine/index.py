"""Append to the index (store behaviour 9.1; store format 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from store_core.codec.tags import index_text_hash
from store_core.derive.index import IndexHeaderState, index_file_name, index_style
from store_core.engine.files import LiveFiles
from store_core.engine.tail import RECOVER_FIRST
from store_core.errors import FailedError
from store_core.layout import index, paths
from store_core.read.index_sizes import IndexSizes, index_sizes
from store_core.storage.store import Store

_FIRST_ENTRY: Final = 1
_LARGEST_SECONDS: Final = (1 << 31) - 1


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
        self._slots, self._entries = sizes.slots, sizes.entries
        style = index_style(store, self._slots, self._entries)
        self._counts_every_put = style.counts_every_put
        self._name: str | None = None
        self._header = IndexHeaderState()
        if store.index_files:
            self._open_newest(log_end_phy_offset)
        self.with_tags = style.tags or (tags_by_default and not self._holds_entries())
        self.full_timestamp_ms = 0

    def add(self, texts: Sequence[str], phy_offset: int, store_timestamp_ms: int, now_ms: int) -> None:
        """Add a record's key texts in order; without texts the next file is still made if the newest is full. Raises OSError."""
        self._roll(now_ms)
        for text in texts:
            self._roll(now_ms)
            self._put(index_text_hash(text), phy_offset, store_timestamp_ms)

    def _open_newest(self, log_end_phy_offset: int) -> None:
        path = self._store.index_files[-1]
        data = self._store.cache.read(path, 0, index.HEADER.size_bytes)
        if path.stat().st_size != index.file_size_bytes(self._slots, self._entries):
            raise FailedError("an index file has the wrong length", path=str(path), to_do=RECOVER_FIRST)
        self._header = IndexHeaderState(**index.HEADER.read(data))
        self._name = path.name
        if self._header.end_phy_offset >= max(log_end_phy_offset, 1) or self._header.index_count > self._entries:
            # A broker would index nothing until the log has grown past it (9.5).
            raise FailedError(
                "the index reaches behind the end of the log", path=str(path), to_do="run `rmqctl rebuild index` first"
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
            name = max(name, str(int(self._name) + 1))
            self.full_timestamp_ms = before.end_timestamp_ms
        self._header = IndexHeaderState(
            before.end_timestamp_ms, before.end_timestamp_ms, before.end_phy_offset, before.end_phy_offset
        )
        self._name = name
        self._files.make_file(self._path, index.file_size_bytes(self._slots, self._entries), self._header.pack())

    def _put(self, key_hash: int, phy_offset: int, store_timestamp_ms: int) -> None:
        """Write the entry first, then the slot that points to it, then the count that makes both valid."""
        header = self._header
        number = max(header.index_count, _FIRST_ENTRY)
        slot_at = index.slot_at(key_hash % self._slots)
        previous = self._slot(slot_at, number)
        seconds = _seconds(store_timestamp_ms, header.begin_timestamp_ms)
        entry = index.ENTRY.struct.pack(key_hash, phy_offset, seconds, previous)
        self._files.write(self._path, index.entry_at(self._slots, number), entry)
        self._files.write(self._path, slot_at, index.SLOT.struct.pack(number))
        is_first = number == _FIRST_ENTRY
        is_new_slot = self._counts_every_put or previous == index.NO_ENTRY
        self._header = replace(
            header,
            begin_timestamp_ms=store_timestamp_ms if is_first else header.begin_timestamp_ms,
            begin_phy_offset=phy_offset if is_first else header.begin_phy_offset,
            end_timestamp_ms=store_timestamp_ms,
            end_phy_offset=phy_offset,
            used_slots=header.used_slots + is_new_slot,
            index_count=number + 1,
        )
        self._files.write(self._path, 0, self._header.pack())

    def _slot(self, slot_at: int, next_entry: int) -> int:
        """Return the newest entry of a slot's chain; an impossible value counts as none."""
        data = self._store.cache.read(self._store.root / self._path, slot_at, index.SLOT.size_bytes)
        value = int(index.SLOT.read(data)["entry"]) if len(data) == index.SLOT.size_bytes else index.NO_ENTRY
        return value if 0 < value <= next_entry else index.NO_ENTRY

    @property
    def _path(self) -> str:
        return f"{paths.INDEX}/{self._name}"


def _default_sizes(store: Store) -> IndexSizes | None:
    """Return a broker's defaults for a store without index entries whose files, if it has any, are as long; None for others."""
    default = IndexSizes(index.DEFAULT_SLOTS, index.DEFAULT_ENTRIES)
    length = index.file_size_bytes(default.slots, default.entries)
    is_empty = not index_sizes(store).findings  # a finding means entries that prove no sizes
    return default if is_empty and all(path.stat().st_size == length for path in store.index_files) else None


def _seconds(store_timestamp_ms: int, begin_timestamp_ms: int) -> int:
    """Return whole seconds after the file's start, as an entry stores them."""
    if begin_timestamp_ms <= 0:
        return 0
    return min(max((store_timestamp_ms - begin_timestamp_ms) // 1000, 0), _LARGEST_SECONDS)
