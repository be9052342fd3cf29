"""A log that begins later here than at a sibling: what tells whether its first segments were lost, or have expired (store behaviour 11).

Nobody can be sure. A broker deletes whole files from the front, at an age or where the disk is full; queue entries for
them stay for a while. So the rest is not taken unasked: what speaks for a loss is counted and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from store_core.layout import paths, queue
from store_core.mend.salvage.copies.sibling import Earlier
from store_core.read.records import read_message
from store_core.storage.config_files import offset_table, read_config
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_CHUNK_ENTRIES: Final = 1 << 16
_KEPT_HOURS: Final = "72"
_MS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What sibling number ``sibling`` has of the log before its first byte here.

    ``queue_entries`` here still point there; ``groups`` have not got as far as the last of those.
    ``is_young``: when the log was last written to, its first record here was not as old as files get before they are deleted.
    """

    sibling: int
    phy_offset: int
    size_bytes: int
    queue_entries: int
    groups: tuple[str, ...]
    is_young: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "phy_offset": self.phy_offset,
            "size_bytes": self.size_bytes,
            "queue_entries": self.queue_entries,
            "groups": list(self.groups),
            "is_young": self.is_young,
        }


def weighed(
    store: Store, earlier: Iterable[Earlier], begin_phy_offset: int, last_store_timestamp_ms: int
) -> list[LeftOut]:
    """What is left out of each sibling's log where ours will begin at ``begin_phy_offset``."""
    found = [each for each in earlier if each.phy_offset < begin_phy_offset]
    if not found:
        return []
    kept_from = {key: _count_before(files, begin_phy_offset) for key, files in store.queues.items()}
    groups = _groups_before(store, {key: end for key, (_, end) in kept_from.items()})
    count = sum(number for key, (number, _) in kept_from.items() if not key.topic.startswith(paths.LMQ_PREFIX))
    young = _is_young(store, last_store_timestamp_ms)
    return [
        LeftOut(each.sibling, each.phy_offset, begin_phy_offset - each.phy_offset, count, groups, young)
        for each in found
    ]


def _count_before(files: SegmentSequence, phy_offset: int) -> tuple[int, int]:
    """How many entries point before an offset, and the number behind the last of them."""
    count = end = 0
    width = queue.ENTRY.size_bytes
    for segment in files.segments:
        first = -(-segment.phy_offset // width)
        for at in range(first, segment.end_phy_offset // width, _CHUNK_ENTRIES):
            data = files.read(at * width, _CHUNK_ENTRIES * width)
            entries = np.frombuffer(data, queue.ENTRY.dtype, len(data) // width)
            before = (entries["size_bytes"] > 0) & (entries["size_bytes"] != queue.FILLER_SIZE_BYTES)
            before &= (entries["phy_offset"] >= 0) & (entries["phy_offset"] < phy_offset)
            if not before.any():
                return count, end
            count += int(np.count_nonzero(before))
            end = at + int(np.flatnonzero(before)[-1]) + 1
    return count, end


def _groups_before(store: Store, ends: Mapping[QueueKey, int]) -> tuple[str, ...]:
    """Groups whose progress lies before these numbers: they have not got all that is gone."""
    progress = offset_table(read_config(store.root))
    return tuple(
        sorted({g for (g, topic, number), at in progress.items() if at < ends.get(QueueKey(topic, number), 0)})
    )


def _is_young(store: Store, last_store_timestamp_ms: int) -> bool:
    first = read_message(store.log, store.log.min_phy_offset)
    hours = store.settings.value("fileReservedTime", _KEPT_HOURS).strip()
    if first is None or not hours.isdecimal():
        return False
    return last_store_timestamp_ms - first.store_timestamp_ms < int(hours) * _MS_PER_HOUR
