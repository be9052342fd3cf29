"""Give the records of the log to queues and index, in runs (store behaviour 6, 7, 9.1)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from store_core.engine.index import IndexWriter
from store_core.engine.queues import NewEntry, QueueWriter
from store_core.storage.store import QueueKey


class Row(NamedTuple):
    """A record to dispatch. ``key`` None: it gets no queue entry, as a half message."""

    key: QueueKey | None
    entry: NewEntry
    key_hashes: list[int]


class Dispatcher:
    """Writes the queue and index entries of records that ``add`` has listed, each time ``run`` is called.

    ``newest_ms`` is the store time of the newest record, ``queued`` the newest one with a queue entry.
    """

    def __init__(
        self, queue_of: Callable[[QueueKey], QueueWriter], index: IndexWriter | None, now_ms: Callable[[], int]
    ) -> None:
        self._queue_of = queue_of
        self._index = index
        self._now_ms = now_ms
        self._rows: deque[Row] = deque()
        self._running = threading.Lock()
        self.newest_ms = 0
        self.queued: NewEntry | None = None

    @property
    def pending(self) -> int:
        """The number of records that are listed and not dispatched."""
        return len(self._rows)

    def add(self, row: Row) -> None:
        """List a record. The caller lists them in the order of the log."""
        self._rows.append(row)

    def run(self, end_phy_offset: int, *, everything: bool = True) -> None:
        """Dispatch the listed records before an offset. Raises OSError; records may then be dispatched in part.

        Without ``everything`` the index keeps slots and header in memory, so that the slots of many runs are written together.
        """
        with self._running:
            rows = []
            while self._rows and self._rows[0].entry.phy_offset < end_phy_offset:
                rows.append(self._rows.popleft())
            if rows:
                self._dispatch(rows)
            if everything and self._index is not None:
                self._index.flush()

    def _dispatch(self, rows: list[Row]) -> None:
        by_queue: dict[QueueKey, list[NewEntry]] = {}
        for key, entry, _ in rows:
            if key is not None:
                by_queue.setdefault(key, []).append(entry)
                self.queued = entry
        for key, entries in by_queue.items():
            self._queue_of(key).append(entries)
        if self._index is not None:
            self._index.add([(entry, hashes) for _, entry, hashes in rows], self._now_ms())
        self.newest_ms = rows[-1].entry.store_timestamp_ms
