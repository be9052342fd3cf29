"""Dispatch accepted records to queues and index, as recovery and start do (behaviour 6.3, 7, 9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.queue_recovery import QueueState
from store_core.codec.properties import REAL_TOPIC, parse_properties
from store_core.codec.text import decode_text
from store_core.derive.batch import batch_entries
from store_core.derive.dispatch import DispatchColumns, Dispatcher, DispatchRules, Rows
from store_core.layout import paths, record
from store_core.scan.frames import stretch
from store_core.storage.store import QueueKey

if TYPE_CHECKING:
    from store_core.broker.load import IndexState
    from store_core.broker.pending_entries import EntrySpool
    from store_core.broker.versions import Behaviour
    from store_core.scan.frames import FrameTable


_SCHEDULE_TOPIC: Final = paths.SCHEDULE_TOPIC.encode()
EARLY_LIMIT: Final = 1000
MOST_WAITING: Final = 1 << 18  # rows, of 42 bytes


@dataclass(frozen=True, slots=True)
class EarlyDelivery:
    """A delayed message whose queue entry lost its delivery time. ``topic`` is the topic it is delivered to."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    delay_level: int


@dataclass(slots=True)
class QueueDispatcher:
    """Feeds tables of accepted records, in log order, to the states of queues and index; makes queues as they appear.

    Entries are collected first, as a queue takes many in the time of one. Call ``settle`` before reading the queues.

    ``no_folders``: paths in the store of files that take the name of a folder of queues. ``failed``: why a broker cannot make a
    queue that a message needs: it tries for long, then flags its queues as broken, and none of them gets more entries.
    """

    behaviour: Behaviour
    rules: DispatchRules
    index_enabled: bool
    queue_file_size_bytes: int
    batch_queue_file_size_bytes: int
    queues: dict[QueueKey, QueueState]
    batch_queues: dict[QueueKey, BatchQueueState]
    index: IndexState
    spool: EntrySpool
    no_folders: Callable[[], frozenset[str]] = frozenset
    failed: str = ""
    early: list[EarlyDelivery] = field(default_factory=list)
    _entries: Dispatcher = field(init=False)
    _waiting: list[DispatchColumns] = field(default_factory=list)
    _waiting_rows: int = 0
    _named: set[bytes] = field(default_factory=set)  # topics for which queues can be made

    def __post_init__(self) -> None:
        self._entries = Dispatcher(self.rules)

    def close(self) -> None:
        """Discard the queues' entries."""
        self._waiting.clear()
        self.spool.close()

    def dispatch(self, table: FrameTable, *, knows_delays: bool) -> None:
        """Dispatch all rows of a table. Without ``knows_delays`` delayed messages get their tags' hash (1.1).

        Raises:
            DispatchError: a broker cannot dispatch a record; then queues and index are not what it leaves.
        """
        if self.failed or self.no_folders() or self._has_unnamed(table):
            queued = self._before_failure(table)
        else:
            queued = table
        if len(queued):
            is_early = not knows_delays and _SCHEDULE_TOPIC in table.topics
            # Records that are not in order are put one by one: no others are to wait with them.
            is_apart = is_early or bool((table.own_phy_offset != table.phy_offset).any())
            if is_apart or self._waiting_rows + len(queued) > MOST_WAITING:
                self.settle()
            columns = self._entries.columns(queued, knows_delays=knows_delays)
            self._waiting.append(columns)
            self._waiting_rows += len(columns.rows)
            if is_apart:
                self.settle(table if is_early else None)
        if self.index_enabled:
            self.index.dispatch(table)

    def dispatch_nameless(self, size_bytes: int) -> None:
        """Dispatch a false record as 4.3.0 does: an entry for offset 0 in queue 0 of the nameless topic, and no keys."""
        self.settle()
        zero = np.zeros(1, np.int64)
        if not self.failed:
            self.queue(QueueKey("", 0)).put(zero, np.array([size_bytes], np.int64), zero, zero)
        if self.index_enabled:
            self.index.make_room()

    def _has_unnamed(self, table: FrameTable) -> bool:
        """Return True if the name of a topic of a table allows no queue."""
        unknown = [topic for topic in table.topics if topic not in self._named]
        self._named.update(topic for topic in unknown if not paths.no_queue_reason(decode_text(topic)))
        return any(topic not in self._named for topic in unknown)

    def _before_failure(self, table: FrameTable) -> FrameTable:
        """Return the rows before the first one whose queue cannot be made, and set ``failed`` if there is one."""
        if self.failed:
            return stretch(table, 0, 0)
        kind = table.sys_flag & record.TRANSACTION_MASK
        queued = np.flatnonzero((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT))
        group = (table.topic_id[queued].astype(np.int64) << 32) + table.queue_id[queued]
        for row in sorted(queued[np.unique(group, return_index=True)[1]].tolist()):
            self.failed = self._failure(QueueKey(decode_text(table.topic(row)), int(table.queue_id[row])))
            if self.failed:
                return stretch(table, 0, row)
        return table

    def _failure(self, key: QueueKey) -> str:
        """Return why a queue that a message needs cannot be made, or ""."""
        is_batch = key.topic in self.rules.batch_topics
        tree = paths.BATCHCONSUMEQUEUE if is_batch else paths.CONSUMEQUEUE
        needed = (tree, f"{tree}/{key.topic}", f"{tree}/{key.topic}/{key.queue_id}")
        blocked = next((folder for folder in needed if folder in self.no_folders()), "")
        if blocked:
            return f"{blocked} is no folder"
        queue = (self.batch_queues if is_batch else self.queues).get(key)
        reason = paths.no_queue_reason(key.topic) if queue is None or not queue.starts else ""
        return (
            f"queue {key.queue_id} of topic {key.topic!r} cannot be made, for its name has {reason}" if reason else ""
        )

    def settle(self, early: FrameTable | None = None) -> None:
        """Put the waiting entries into the queues. ``early``: their table, if they may lack delivery times."""
        if not self._waiting:
            return
        key_ids, rows = (np.concatenate(part) for part in zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._waiting_rows = 0
        order = np.argsort(key_ids, kind="stable")
        key_ids, rows = key_ids[order], rows[order]
        bounds = [0, *(np.flatnonzero(np.diff(key_ids)) + 1).tolist(), len(rows)]
        for start, end in pairwise(bounds) if len(rows) else ():
            self._put(self._entries.keys[key_ids[start]], rows[start:end], early)

    def _put(self, key: QueueKey, rows: Rows, early: FrameTable | None) -> None:
        """Put entries into their queue."""
        if key.topic in self.rules.batch_topics:
            self._batch_queue(key).put_batches(batch_entries(rows))
            return
        queue = self.queue(key)
        before = queue.max_offset
        names = ("phy_offset", "size_bytes", "tags_code", "queue_offset")
        queue.put(*(rows[name].astype(np.int64) for name in names))
        if early is not None and key.topic == paths.SCHEDULE_TOPIC:
            self._note_early(queue, before, rows, early)

    def queue(self, key: QueueKey) -> QueueState:
        """Return the state of a queue; make an empty one if there is none yet."""
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = QueueState(
                key, self.queue_file_size_bytes, self.behaviour, None, [], spool=self.spool
            )
        return found

    def _batch_queue(self, key: QueueKey) -> BatchQueueState:
        found = self.batch_queues.get(key)
        if found is None:
            size = self.batch_queue_file_size_bytes
            found = self.batch_queues[key] = BatchQueueState(key, size, self.behaviour, None, [], spool=self.spool)
        return found

    def _note_early(self, queue: QueueState, before: int, rows: Rows, table: FrameTable) -> None:
        """Note the entries that a delay queue got without a delivery time.

        Records and entries are both in order, so the last ones match. A new queue starts at its first record's number.
        """
        end = queue.max_offset
        added = min(end - before, len(rows)) if queue.starts else 0
        row_at = {at: row for row, at in enumerate(table.own_phy_offset.tolist())}
        for number, phy_offset in zip(range(end - added, end), rows["phy_offset"][len(rows) - added :], strict=True):
            row = row_at[int(phy_offset)]
            if len(self.early) < EARLY_LIMIT and table.delay_level[row] > 0:
                topic = parse_properties(table.properties(row)).get(REAL_TOPIC, "")
                level = int(table.delay_level[row])
                self.early.append(EarlyDelivery(topic, queue.key.queue_id, number, int(phy_offset), level))
