"""Find old records and old queue entries that a start takes for new ones (store behaviour 3.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from store_core.broker.batch_queue import BatchQueueState
from store_core.codec.record import RecordError, decode_record
from store_core.codec.text import decode_text
from store_core.layout import paths, record
from store_core.layout.queue import ENTRY
from store_core.recovery.prediction.outcome import ResurrectedRecord

if TYPE_CHECKING:
    from store_core.broker.start import Start
    from store_core.scan.frames import FrameTable
    from store_core.storage.store import Store

MOST_GHOSTS: Final = 1000


@dataclass(slots=True)
class ResurrectionSearch:
    """Collects resurrected records from all tables that a recovery accepts, at most ``MOST_GHOSTS`` of each kind."""

    store: Store
    _records: list[ResurrectedRecord] = field(default_factory=list)

    def look_at(self, table: FrameTable) -> None:
        """Add records whose own offset is lower than their position, and which have no queue entry."""
        for row in np.flatnonzero(table.own_phy_offset < table.phy_offset):
            if len(self._records) >= MOST_GHOSTS:
                return
            ghost = ResurrectedRecord(
                "record",
                decode_text(table.topic(int(row))),
                int(table.queue_id[row]),
                int(table.queue_offset[row]),
                int(table.phy_offset[row]),
                int(table.size_bytes[row]),
            )
            if not self._has_entry(ghost):
                self._records.append(ghost)

    def _has_entry(self, ghost: ResurrectedRecord) -> bool:
        queue = self.store.queue(ghost.topic, ghost.queue_id)
        data = queue.read(ghost.queue_offset * ENTRY.size_bytes, ENTRY.size_bytes) if queue is not None else b""
        return len(data) == ENTRY.size_bytes and ENTRY.read(data)["phy_offset"] == ghost.phy_offset

    def found(self, start: Start) -> tuple[ResurrectedRecord, ...]:
        """Return the resurrected records that the start keeps, then the resurrected entries."""
        kept = [ghost for ghost in self._records if ghost.phy_offset < start.log.max_phy_offset]
        return (*kept, *self._entries(start)[:MOST_GHOSTS])

    def _entries(self, start: Start) -> list[ResurrectedRecord]:
        """Return entries that point to a lower offset than their predecessor, to a record with a lower queue offset."""
        ghosts = []
        for queue in start.queues:
            if isinstance(queue, BatchQueueState) or queue.key.topic.startswith(paths.LMQ_PREFIX):
                continue
            for number in queue.falling:
                if not queue.min_offset <= number < queue.max_offset:
                    continue
                at = number * queue.entry_size_bytes
                entry = queue.entries(at, at + queue.entry_size_bytes)[0]
                ghost = ResurrectedRecord(
                    "entry", *queue.key, number, int(entry["phy_offset"]), int(entry["size_bytes"])
                )
                if ghost.phy_offset < start.log.max_phy_offset and self._points_back(ghost):
                    ghosts.append(ghost)
        return ghosts

    def _points_back(self, ghost: ResurrectedRecord) -> bool:
        if not record.MIN_RECORD_SIZE_BYTES <= ghost.size_bytes <= record.MAX_RECORD_SIZE_BYTES:
            return False
        data = self.store.log.read(ghost.phy_offset, ghost.size_bytes)
        try:
            message = decode_record(data, 0, ghost.phy_offset)
        except RecordError:
            return False
        place = (message.topic, message.queue_id)
        return place == (ghost.topic, ghost.queue_id) and message.queue_offset < ghost.queue_offset
