"""Build batch queue files from the log (store format 6.6): entries of 46 bytes in order of arrival, one for each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.derive.dispatch import Rows
from store_core.derive.queues import QueueFile, file_size_of
from store_core.derive.spool import READ_ROWS, RowsByQueue
from store_core.layout import paths, queue
from store_core.storage.digest import Hole
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_ENTRY: Final = queue.BATCH_ENTRY
_COLUMNS: Final = ("phy_offset", "size_bytes", "tags_code", "store_timestamp_ms", "queue_offset", "batch_size")
_COMPACTED_OFFSET: Final = -1


class BatchQueueBuilder:
    """Builds the files of batch queues from spooled rows.

    An entry's place is not its number. So entries of the ``existing`` files for expired records, before ``log_min_phy_offset``,
    keep their places. Where numbers go back, only the rows from there on count.
    """

    def __init__(
        self,
        rows: RowsByQueue,
        file_size_bytes: int,
        *,
        existing: Mapping[QueueKey, SegmentSequence] | None = None,
        log_min_phy_offset: int = 0,
    ) -> None:
        self._rows = rows
        self.file_size_bytes = file_size_bytes
        self._existing = existing or {}
        self._log_min = log_min_phy_offset

    def queue_keys(self) -> list[QueueKey]:
        """Return the batch queues that messages were dispatched to."""
        return [key for key in self._rows.queue_keys() if key.topic in self._rows.rules.batch_topics]

    def files(self, key: QueueKey) -> Iterator[QueueFile]:
        """Yield the queue's files in order."""
        per_file = self.file_size_bytes // _ENTRY.size_bytes
        skipped = last_generation(self._rows.rows(key))
        first_slot, carried = self._expired(key)
        end_slot = first_slot + len(carried) + self._rows.count(key) - skipped
        for number in range(first_slot // per_file, -(-end_slot // per_file)):
            start, end = number * per_file, min((number + 1) * per_file, end_slot)
            last = skipped + end - 1 - first_slot - len(carried)
            row = next(self._rows.rows(key, max(last, 0), max(last, 0) + 1))[0]
            yield QueueFile(
                paths.segment_name(number * self.file_size_bytes),
                self.file_size_bytes,
                int(row["store_timestamp_ms"]),
                partial(self._content, key, start, end, first_slot, carried, skipped),
                (end - start) * _ENTRY.size_bytes,
            )

    def _expired(self, key: QueueKey) -> tuple[int, NDArray[Any]]:
        """Return the number of the first place to write, and the entries of expired records to carry over there."""
        carried = np.empty(0, _ENTRY.dtype)
        files = self._existing.get(key)
        if files is None or not files.segments or not self._log_min:
            return 0, carried
        first, slot = 0, 0
        per_file = self.file_size_bytes // _ENTRY.size_bytes
        for segment in files.segments:
            data = files.read(segment.phy_offset, segment.size_bytes)
            entries = np.frombuffer(data, _ENTRY.dtype, len(data) // _ENTRY.size_bytes)
            is_expired = (entries["size_bytes"] > 0) & (entries["phy_offset"] < self._log_min)
            count = int(np.argmin(is_expired)) if not is_expired.all() else len(is_expired)
            slot = segment.phy_offset // _ENTRY.size_bytes
            first, carried = slot, entries[:count]
            if count < per_file:
                return first, carried
        return slot + per_file, carried[:0]

    def _content(
        self, key: QueueKey, start: int, end: int, first_slot: int, carried: NDArray[Any], skipped: int
    ) -> Iterator[bytes | Hole]:
        written = 0
        if start < first_slot + len(carried):
            part = carried[max(start - first_slot, 0) : end - first_slot].tobytes()
            yield part
            written += len(part)
        base = first_slot + len(carried) - skipped  # place of row 0
        low = max(start, first_slot + len(carried)) - base
        for at in range(low, end - base, READ_ROWS):
            for rows in self._rows.rows(key, at, min(at + READ_ROWS, end - base)):
                entries = batch_entries(rows)
                yield entries.tobytes()
                written += entries.nbytes
        yield Hole(self.file_size_bytes - written)


def batch_entries(rows: Rows) -> NDArray[Any]:
    """Return rows as entries of a batch queue's file."""
    entries = np.zeros(len(rows), _ENTRY.dtype)
    for name in _COLUMNS:
        entries[name] = rows[name]
    entries["compacted_offset"] = _COMPACTED_OFFSET
    return entries


def known_batch_file_size(store: Store) -> int | None:
    """Return the size in bytes of batch queue files that the store or its configuration shows."""
    return file_size_of(store.batch_queues.values()) or store.settings.batch_queue_file_size_bytes


def batch_queue_builder(store: Store, rows: RowsByQueue, log_min_phy_offset: int) -> BatchQueueBuilder:
    """Return the builder of a store's batch queues from the rows of a log that starts at ``log_min_phy_offset``."""
    size = known_batch_file_size(store) or queue.DEFAULT_BATCH_FILE_SIZE_BYTES
    return BatchQueueBuilder(rows, size, existing=store.batch_queues, log_min_phy_offset=log_min_phy_offset)


def last_generation(chunks: Iterable[Rows]) -> int:
    """Return the number of the first row of the last generation, given rows in log order by the chunk."""
    first = at = expected = 0
    for rows in chunks:
        ends = rows["queue_offset"] + rows["batch_size"]
        before = np.concatenate([[expected], ends[:-1]])
        drops = np.flatnonzero(rows["queue_offset"] < before)
        if len(drops):
            first = at + int(drops[-1])
        expected, at = int(ends[-1]), at + len(rows)
    return first
