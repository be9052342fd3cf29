"""What queue entries still tell about records that the log no longer shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from store_core.layout import paths, queue, record
from store_core.mend.survey import LostRecord, Region
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

_CHUNK_ENTRIES = 1 << 18


def lost_by_queue_entries(store: Store, regions: Sequence[Region]) -> dict[int, list[LostRecord]]:
    """Records that queue entries place inside a region, by the region's number, in log order.

    An entry counts when a record of its size fits into the region. Of several entries for one place (light queues), the
    one whose queue the record was sent to is taken, as far as names tell. Memory grows with what is lost only.
    """
    found: dict[int, dict[int, LostRecord]] = {}
    if not regions:
        return {}
    starts = np.array([r.phy_offset for r in regions], np.int64)
    ends = np.array([r.end_phy_offset for r in regions], np.int64)
    for key, files in store.queues.items():
        for queue_offset, phy_offset, size in _entries_in(files, starts, ends):
            number = int(np.searchsorted(starts, phy_offset, "right")) - 1
            if phy_offset + size > regions[number].end_phy_offset:
                continue
            lost = LostRecord(key.topic, key.queue_id, queue_offset, phy_offset, size)
            known = found.setdefault(number, {})
            if phy_offset not in known or _is_light(known[phy_offset].topic):
                known[phy_offset] = lost
    return {number: [known[at] for at in sorted(known)] for number, known in found.items()}


def _is_light(topic: str) -> bool:
    return topic.startswith(paths.LMQ_PREFIX)


def _entries_in(
    files: SegmentSequence,
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    ends: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Iterator[tuple[int, int, int]]:
    """(queue offset, phys offset, size) of the entries that begin inside one of the regions."""
    width = queue.ENTRY.size_bytes
    for segment in files.segments:
        at = segment.phy_offset - segment.phy_offset % width
        while at + width <= segment.end_phy_offset:
            data = files.read(at, _CHUNK_ENTRIES * width)
            entries = np.frombuffer(data, queue.ENTRY.dtype, count=len(data) // width)
            if not len(entries):
                break
            phy_offset = entries["phy_offset"].astype(np.int64)
            size = entries["size_bytes"]
            number = np.searchsorted(starts, phy_offset, "right") - 1
            inside = (number >= 0) & (phy_offset < ends[number])
            inside &= (size >= record.MIN_RECORD_SIZE_BYTES) & (size <= record.MAX_RECORD_SIZE_BYTES)
            for place in np.flatnonzero(inside):
                yield at // width + int(place), int(phy_offset[place]), int(size[place])
            at += len(entries) * width
