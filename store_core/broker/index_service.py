"""Count the entries of a broker's index files: which files survive the load, which grow, which are new (behaviour 1.3, 9.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from store_core.layout import index as layout
from store_core.read.index_sizes import index_sizes

if TYPE_CHECKING:
    from store_core.scan.frames import FrameTable
    from store_core.storage.store import Store

FIRST_ENTRY: Final = 1


@dataclass(slots=True)
class IndexFileState:
    """One index file in memory. ``name`` is None for a file that the start would make; ``next_entry`` is its index count."""

    name: str | None
    end_timestamp_ms: int = 0
    end_phy_offset: int = 0
    next_entry: int = FIRST_ENTRY


@dataclass(slots=True)
class IndexState:
    """All index files in order, and how many entries a start would add."""

    entries_per_file: int
    files: list[IndexFileState] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    entries_added: int = 0

    def dispatch(self, table: FrameTable) -> None:
        """Add the keys of accepted records, in order. A record before the newest file's end counts as indexed."""
        if not len(table) or self._takes_all(table):
            return
        keys = np.bincount(table.key_row, minlength=len(table)) if len(table.key_row) else np.zeros(len(table), int)
        offsets = table.own_phy_offset
        row = 0
        while row < len(table):
            current = self.make_room()
            unindexed = np.flatnonzero(offsets[row:] >= current.end_phy_offset)
            if not len(unindexed):
                return
            row += int(unindexed[0])
            row = self._fill(current, table, keys, row)

    def _takes_all(self, table: FrameTable) -> bool:
        """Add the keys of a whole table; return False if the caller must add them record by record.

        That is so if records are odd or to be skipped, or if the newest file has no room for more than these keys.
        """
        current, count = self.make_room(), len(table.key_row)
        has_room = count < self.entries_per_file - current.next_entry
        if not has_room or not table.is_good or int(table.own_phy_offset[0]) < current.end_phy_offset:
            return False
        if count:
            last = int(table.key_row[-1])
            current.end_phy_offset = int(table.own_phy_offset[last])
            current.end_timestamp_ms = int(table.store_timestamp_ms[last])
            current.next_entry += count
            self.entries_added += count
        return True

    def make_room(self) -> IndexFileState:
        """Return the newest file, or a new one if it is full; a broker makes it before it reads the record's keys."""
        if self.files and self.files[-1].next_entry < self.entries_per_file:
            return self.files[-1]
        return self._new_file()

    def _fill(self, current: IndexFileState, table: FrameTable, keys: np.ndarray, row: int) -> int:
        """Put records from ``row`` on into the file until it is full or a record is to be skipped; return the next row."""
        offsets = table.own_phy_offset[row:]
        # The file's end is the newest record that added a key, so a later record at a lower offset is skipped.
        reached = np.maximum.accumulate(np.where(keys[row:] > 0, offsets, current.end_phy_offset))
        skipped = offsets < np.maximum(np.r_[current.end_phy_offset, reached[:-1]], current.end_phy_offset)
        stop = int(np.argmax(skipped)) if skipped.any() else len(offsets)
        sums = np.cumsum(keys[row : row + stop])
        room = self.entries_per_file - current.next_entry
        fitting = int(np.searchsorted(sums, room, side="left")) + 1  # with the record that fills or overflows it
        count = min(fitting, stop)
        added = int(sums[count - 1]) if count else 0
        self.entries_added += added
        with_keys = np.flatnonzero(keys[row : row + count])
        if len(with_keys):
            last = row + int(with_keys[-1])
            end, time = int(table.own_phy_offset[last]), int(table.store_timestamp_ms[last])
            overflow = max(added - room, 0)
            if added - overflow:
                current.next_entry += added - overflow
                current.end_phy_offset, current.end_timestamp_ms = end, time
            while overflow:  # one record's keys may end in two files
                current = self._new_file()
                part = min(overflow, self.entries_per_file - current.next_entry)
                current.next_entry += part
                overflow -= part
                current.end_phy_offset, current.end_timestamp_ms = end, time
        return row + count

    def _new_file(self) -> IndexFileState:
        """Make a new file, which starts with the end of the file before it if that is positive."""
        before = self.files[-1] if self.files else IndexFileState(None)
        self.files.append(IndexFileState(None, max(before.end_timestamp_ms, 0), max(before.end_phy_offset, 0)))
        return self.files[-1]


def read_header(store: Store, path: Path) -> IndexFileState:
    """Return the header of an index file; the broker's mapping extends a shorter file with zeros."""
    data = store.cache.read(path, 0, layout.HEADER.size_bytes).ljust(layout.HEADER.size_bytes, b"\0")
    header = layout.HEADER.read(data)
    return IndexFileState(
        path.name, header["end_timestamp_ms"], header["end_phy_offset"], max(header["index_count"], FIRST_ENTRY)
    )


def entries_per_file(store: Store) -> int:
    """Return the configured or proven number of places of an index file, else a broker's default.

    It decides only when a start makes a new file.
    """
    sizes = index_sizes(store).sizes
    return sizes.entries if sizes else store.settings.index_entries or layout.DEFAULT_ENTRIES
