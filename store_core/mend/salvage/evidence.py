"""What queue entries still tell about records that the log no longer shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from store_core.layout import paths, queue, record
from store_core.layout.schema import Layout
from store_core.mend.salvage.survey import LostRecord, Region
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

_CHUNK_ENTRIES = 1 << 18


def lost_by_queue_entries(store: Store, regions: Sequence[Region]) -> dict[int, list[LostRecord]]:
    """Records that queue entries place inside a region, by the region's number, in log order.

    An entry counts when a record of its size fits into the region. Of several entries for one place, the one whose queue
    the record was sent to is taken, as far as names tell; the light queues are noted with it. Memory grows with what is
    lost only.
    """
    found: dict[int, dict[int, LostRecord]] = {}
    light: dict[int, list[tuple[str, int]]] = {}
    if not regions:
        return {}
    starts = np.array([r.phy_offset for r in regions], np.int64)
    ends = np.array([r.end_phy_offset for r in regions], np.int64)
    trees = ((store.queues, queue.ENTRY), (store.batch_queues, queue.BATCH_ENTRY))
    for key, files, layout in ((k, f, layout) for queues, layout in trees for k, f in queues.items()):
        for queue_offset, phy_offset, size, batch_size, tags_code in _entries_in(files, layout, starts, ends):
            number = int(np.searchsorted(starts, phy_offset, "right")) - 1
            if phy_offset + size > regions[number].end_phy_offset:
                continue
            if _is_light(key.topic):
                light.setdefault(phy_offset, []).append((key.topic, queue_offset))
            known = found.setdefault(number, {})
            if phy_offset not in known or _is_light(known[phy_offset].topic):
                known[phy_offset] = LostRecord(
                    key.topic,
                    key.queue_id,
                    queue_offset,
                    phy_offset,
                    size,
                    batch_size=batch_size,
                    tags_code=tags_code,
                )
    return {
        number: [_with_light(known[at], light.get(at, [])) for at in sorted(known)] for number, known in found.items()
    }


def _with_light(lost: LostRecord, light: list[tuple[str, int]]) -> LostRecord:
    """The record with the light queues it was in besides."""
    return lost if _is_light(lost.topic) or not light else replace(lost, light_queues=tuple(sorted(light)))


def _is_light(topic: str) -> bool:
    return topic.startswith(paths.LMQ_PREFIX)


def _entries_in(
    files: SegmentSequence,
    layout: Layout,
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    ends: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Iterator[tuple[int, int, int, int, int]]:
    """(queue offset, phys offset, size, messages, tags code) of the entries that begin inside one of the regions."""
    width = layout.size_bytes
    is_batch = "batch_size" in layout.names
    for segment in files.segments:
        at = segment.phy_offset - segment.phy_offset % width
        while at + width <= segment.end_phy_offset:
            data_at = files.next_data(max(at, segment.phy_offset))
            if data_at is None:  # nothing was ever written behind it, or no file is there
                break
            at = data_at - data_at % width
            data = files.read(at, _CHUNK_ENTRIES * width)
            entries = np.frombuffer(data, layout.dtype, count=len(data) // width)
            if not len(entries):
                break
            phy_offset = entries["phy_offset"].astype(np.int64)
            size = entries["size_bytes"]
            number = np.searchsorted(starts, phy_offset, "right") - 1
            inside = (number >= 0) & (phy_offset < ends[number])
            inside &= (size >= record.MIN_RECORD_SIZE_BYTES) & (size <= record.MAX_RECORD_SIZE_BYTES)
            if is_batch:
                inside &= (entries["batch_size"] > 0) & (entries["queue_offset"] >= 0)
            for place in np.flatnonzero(inside).tolist():
                first = int(entries["queue_offset"][place]) if is_batch else at // width + place
                count = int(entries["batch_size"][place]) if is_batch else 1
                yield first, int(phy_offset[place]), int(size[place]), count, int(entries["tags_code"][place])
            at += len(entries) * width
