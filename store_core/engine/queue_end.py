"""Find the last entry of every queue: the newest decides where a broker looks for the log's end (store behaviour 2, 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from store_core.layout import queue
from store_core.layout.schema import Layout
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import QueueKey, Store


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The newest entry of a queue, and the number of entries before it in the whole sequence."""

    key: QueueKey
    slot: int
    phy_offset: int
    size_bytes: int

    @property
    def end_phy_offset(self) -> int:
        return self.phy_offset + self.size_bytes


def newest_entry(store: Store) -> LastEntry | None:
    """Return the entry with the highest log offset of all queues; None where no queue has entries.

    Pre-blank entries and those that point before the log's first byte are ignored. Entries are found by a binary search, because a sound queue has no
    holes.
    """
    entries = (
        entry
        for entry in _last_entries(store)
        if _points_to_log(entry) and entry.phy_offset >= store.log.min_phy_offset
    )
    return max(entries, key=lambda entry: entry.end_phy_offset, default=None)


def _last_entries(store: Store) -> Iterator[LastEntry]:
    trees: Final = ((store.queues, queue.ENTRY), (store.batch_queues, queue.BATCH_ENTRY))
    for queues, layout in trees:
        for key, files in queues.items():
            if (entry := last_entry(key, files, layout)) is not None:
                yield entry


def last_entry(key: QueueKey, files: SegmentSequence, layout: Layout) -> LastEntry | None:
    """Return the newest entry of a queue; None for a queue without entries."""
    for segment in reversed(files.segments):
        entries = _entries_in(files, segment, layout)
        if entries:
            place = segment.phy_offset + (entries - 1) * layout.size_bytes
            found = _read(files, place, layout)
            return LastEntry(key, place // layout.size_bytes, found["phy_offset"], found["size_bytes"])
    return None


def _entries_in(files: SegmentSequence, segment: Segment, layout: Layout) -> int:
    """Return the number of entries at a file's start."""
    low, high = 0, segment.size_bytes // layout.size_bytes
    while low < high:
        middle = (low + high) // 2
        if _read(files, segment.phy_offset + middle * layout.size_bytes, layout).get("size_bytes", 0) > 0:
            low = middle + 1
        else:
            high = middle
    return low


def _read(files: SegmentSequence, position: int, layout: Layout) -> dict[str, Any]:
    data = files.read(position, layout.size_bytes)
    return layout.read(data) if len(data) == layout.size_bytes else {}


def _points_to_log(entry: LastEntry) -> bool:
    return not (entry.phy_offset == queue.FILLER_PHY_OFFSET and entry.size_bytes == queue.FILLER_SIZE_BYTES)
