"""Dispatch accepted records to queues and index, as recovery and start do (behaviour 6.3, 7, 9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.dispatch_cache import DispatchedRows
from store_core.broker.pending_entries import EntrySpool
from store_core.broker.queue_recovery import QueueState
from store_core.codec.delay_levels import UNKNOWN_LEVEL_MS
from store_core.codec.properties import REAL_TOPIC, java_number, parse_properties
from store_core.codec.text import decode_text
from store_core.derive.dispatch import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, is_java_blank, java_split, light_key
from store_core.kernel.codes import PropertyFlag
from store_core.layout import paths, record
from store_core.storage.store import QueueKey

if TYPE_CHECKING:
    from store_core.broker.index_service import IndexState
    from store_core.broker.record_check import CheckRules
    from store_core.broker.versions import Behaviour
    from store_core.scan.frames import FrameTable, Ints

_BATCH_SIZE: Final = "INNER_NUM"
_BATCH_BASE: Final = "INNER_BASE"
EARLY_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """The rules of dispatch that depend on release and configuration.

    ``delays_ms``: the delay of level 1, 2, … ``batch_topics``: topics whose queues are batch queues.
    """

    delays_ms: tuple[int, ...]
    batch_topics: frozenset[str]
    multi_dispatch: bool
    lmq: bool  # a `%LMQ%…` name in a list means queue 0
    index_enabled: bool
    queue_file_size_bytes: int
    batch_queue_file_size_bytes: int


class DispatchError(Exception):
    """Raised if dispatch of the record at ``phy_offset`` throws at each attempt."""

    def __init__(self, phy_offset: int, number: str) -> None:
        super().__init__(
            f"the record at {phy_offset} lists a light queue with {number!r} for a number (NumberFormatException)"
        )
        self.phy_offset = phy_offset


@dataclass(frozen=True, slots=True)
class EarlyDelivery:
    """A delayed message whose queue entry lost its delivery time. ``topic`` is the topic it is delivered to."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    delay_level: int


@dataclass(slots=True)
class Dispatcher:
    """Feeds tables of accepted records, in log order, to the states of queues and index; makes queues as they appear.

    Rows of sane records are collected first, as a queue takes many rows in the time of one: in ``known``, with the rows of
    earlier starts, or in a cache of this dispatcher. Call ``settle`` before reading the queues.

    ``no_folders``: paths in the store of files that take the name of a folder of queues. ``failed``: why a broker cannot make a
    queue that a message needs: it tries for long, then flags its queues as broken, and none of them gets more entries.
    """

    behaviour: Behaviour
    rules: DispatchRules
    queues: dict[QueueKey, QueueState]
    batch_queues: dict[QueueKey, BatchQueueState]
    index: IndexState
    spool: EntrySpool
    no_folders: Callable[[], frozenset[str]] = frozenset
    failed: str = ""
    known: DispatchedRows | None = None
    early: list[EarlyDelivery] = field(default_factory=list)
    _topics: dict[bytes, str] = field(default_factory=dict)  # why no queue can be made for them
    _own: DispatchedRows = field(default_factory=DispatchedRows)
    _waiting: tuple[DispatchedRows, int, int] | None = None  # rows of a part of the log for the queues

    def close(self) -> None:
        """Discard the queues' entries."""
        self._own.close()
        self.spool.close()

    def dispatch(self, table: FrameTable, *, knows_delays: bool) -> None:
        """Dispatch all rows of a table. Without ``knows_delays`` delayed messages get their tags' hash (1.1).

        Raises:
            DispatchError: a broker cannot dispatch a record; then queues and index are not what it leaves.
        """
        kind = table.sys_flag & record.TRANSACTION_MASK
        queued = np.flatnonzero((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT))
        if self.failed or self.no_folders() or self._names_no_folder(table):
            queued = self._before_failure(table, queued)
        if len(queued):
            self._to_queues(table, queued, self._tags(table, knows_delays), knows_delays=knows_delays)
        if self.rules.index_enabled:
            self.index.dispatch(table)

    def dispatch_known(self, at: int, limit: int, check: CheckRules, *, knows_delays: bool) -> int:
        """Dispatch rows kept from earlier starts, from ``at`` to at most ``limit``, while they suit this start; return their end."""
        if self.known is None or self._is_dispatched_alone():
            return at
        with_tags = self.behaviour.index_tags
        while (stretch := self.known.at(at)) is not None and stretch.end <= limit:
            if not stretch.accepts(check, knows_delays=knows_delays):
                break
            if self.rules.index_enabled and not self.index.take(at, stretch.all_keys(with_tags=with_tags)):
                break
            self._wait_for(self.known, at, stretch.end)
            at = stretch.end
        return at

    def dispatch_nameless(self, size_bytes: int) -> None:
        """Dispatch a false record as 4.3.0 does: an entry for offset 0 in queue 0 of the nameless topic, and no keys."""
        self.settle()
        zero = np.zeros(1, np.int64)
        if not self.failed:
            self.queue(QueueKey("", 0)).put(zero, np.array([size_bytes], np.int64), zero, zero)
        if self.rules.index_enabled:
            self.index.make_room()

    def _is_dispatched_alone(self) -> bool:
        """Return True if kept rows do not suffice: for batch topics, or where a queue cannot be made."""
        return bool(self.rules.batch_topics or self.failed or self.no_folders())

    def _names_no_folder(self, table: FrameTable) -> bool:
        """Return True if the name of a topic of a table allows no queue."""
        unknown = [topic for topic in table.topics if topic not in self._topics]
        self._topics.update((topic, paths.no_queue_reason(decode_text(topic))) for topic in unknown)
        return any(self._topics[topic] for topic in table.topics)

    def _before_failure(self, table: FrameTable, queued: Ints) -> Ints:
        """Return the rows before the first one whose queue cannot be made, and set ``failed`` if there is one."""
        if self.failed:
            return queued[:0]
        group = (table.topic_id[queued].astype(np.int64) << 32) + table.queue_id[queued]
        for row in sorted(queued[np.unique(group, return_index=True)[1]].tolist()):
            self.failed = self._failure(QueueKey(decode_text(table.topic(row)), int(table.queue_id[row])))
            if self.failed:
                return queued[: int(np.searchsorted(queued, row))]
        return queued

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

    def _tags(self, table: FrameTable, knows_delays: bool) -> Ints:
        """Return the tags codes; for delayed messages the delivery times."""
        tags = table.tags_code
        delayed = table.delay_level > 0
        if not knows_delays or not delayed.any():
            return tags
        delays = np.array(self.rules.delays_ms or (UNKNOWN_LEVEL_MS,), np.int64)
        level = np.clip(table.delay_level, 1, len(delays))
        return np.where(delayed, table.store_timestamp_ms + delays[level - 1], tags)

    def settle(self) -> None:
        """Put the waiting rows into the queues."""
        if self._waiting is None:
            return
        rows, start, end = self._waiting
        self._waiting = None
        for (topic, queue_id), part in rows.rows(start, end):
            queue, last = self.queue(QueueKey(decode_text(topic), queue_id)), part[-1]
            if queue.has_passed(int(last["phy_offset"]), int(last["size_bytes"])):
                continue
            columns = (
                part[name].astype(np.int64) for name in ("phy_offset", "size_bytes", "tags_code", "queue_offset")
            )
            queue.put(*columns)
        if rows is self._own:
            rows.close()

    def _keep(self, table: FrameTable, tags: Ints, *, knows_delays: bool) -> bool:
        """Keep the rows of a table until the queues are read; return False if they must be dispatched now."""
        if self._is_dispatched_alone():
            return False
        if self._waiting is not None and not self._may_wait_with(self._waiting[0], int(table.phy_offset[0])):
            self.settle()
        shared = (
            [self.known] if self.known is not None and not self.behaviour.index_tags else []
        )  # others need keys alone
        for rows in (*shared, self._own):
            stretch = rows.add(table, tags, knows_delays=knows_delays)
            if stretch is not None:
                self._wait_for(rows, stretch.start, stretch.end)
                return True
        return False

    def _may_wait_with(self, rows: DispatchedRows, start: int) -> bool:
        """Return True if no kept record lies between the waiting rows and rows from ``start`` on."""
        if self._waiting is None or self._waiting[0] is not rows or start < self._waiting[2]:
            return False
        return rows.has_none_between(self._waiting[2], start)

    def _wait_for(self, rows: DispatchedRows, start: int, end: int) -> None:
        if self._waiting is not None and self._may_wait_with(rows, start):
            self._waiting = rows, self._waiting[1], end
        else:
            self.settle()
            self._waiting = rows, start, end

    def _to_queues(self, table: FrameTable, queued: Ints, tags: Ints, *, knows_delays: bool) -> None:
        if self._keep(table, tags, knows_delays=knows_delays):
            return
        self.settle()
        group = (table.topic_id[queued].astype(np.int64) << 32) + table.queue_id[queued]
        for part in _by_group(group):
            rows = queued[part]
            topic = decode_text(table.topic(int(rows[0])))
            key = QueueKey(topic, int(table.queue_id[rows[0]]))
            if topic in self.rules.batch_topics:
                self._to_batch_queue(key, table, rows, tags)
                continue
            queue = self.queue(key)
            before = queue.max_offset
            queue.put(
                table.own_phy_offset[rows],
                table.size_bytes[rows].astype(np.int64),
                tags[rows],
                table.queue_offset[rows],
            )
            if not knows_delays and topic == paths.SCHEDULE_TOPIC:
                self._note_early(queue, before, table, rows)
        if self.rules.multi_dispatch:
            self._to_light_queues(table, queued[table.with_property(PropertyFlag.INNER_MULTI_DISPATCH)[queued]], tags)

    def queue(self, key: QueueKey) -> QueueState:
        """Return the state of a queue; make an empty one if there is none yet."""
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = QueueState(
                key, self.rules.queue_file_size_bytes, self.behaviour, None, [], spool=self.spool
            )
        return found

    def _to_light_queues(self, table: FrameTable, rows: Ints, tags: Ints) -> None:
        """Add entries to the queues of each record's list; lists of different length give none (4.11)."""
        if not len(rows):
            return
        listed: dict[QueueKey, list[tuple[int, int]]] = {}  # rows and numbers
        unlisted = [self.behaviour.no_lists.covers(decode_text(topic)) for topic in table.topics]
        rows = rows[~np.array(unlisted, bool)[table.topic_id[rows]]]
        for row in rows.tolist():
            properties = parse_properties(table.properties(row))
            texts = properties.get(MULTI_DISPATCH, ""), properties.get(MULTI_QUEUE_OFFSET, "")
            names, numbers = (java_split(text) for text in texts)
            if len(names) != len(numbers) or any(is_java_blank(text) for text in texts):
                continue
            for name, text in zip(names, numbers, strict=True):
                if "/" in name and self.behaviour.passes_light_folders:
                    continue
                number = java_number(text, 64)
                if number is None:
                    raise DispatchError(int(table.own_phy_offset[row]), text)
                key = light_key(name, int(table.queue_id[row]), lmq=self.rules.lmq)
                listed.setdefault(key, []).append((row, number))
        for key, pairs in listed.items():
            group_rows, offsets = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
            sizes = table.size_bytes[group_rows].astype(np.int64)
            self.queue(key).put(table.own_phy_offset[group_rows], sizes, tags[group_rows], offsets)

    def _to_batch_queue(self, key: QueueKey, table: FrameTable, rows: Ints, tags: Ints) -> None:
        queue = self.batch_queues.get(key)
        if queue is None:
            size = self.rules.batch_queue_file_size_bytes
            queue = self.batch_queues[key] = BatchQueueState(key, size, self.behaviour, None, [], spool=self.spool)
        entries = np.zeros(len(rows), queue.layout.dtype)
        entries["phy_offset"], entries["size_bytes"] = table.own_phy_offset[rows], table.size_bytes[rows]
        entries["tags_code"], entries["store_timestamp_ms"] = tags[rows], table.store_timestamp_ms[rows]
        # A record that is no batch counts as a batch of one message.
        entries["queue_offset"], entries["batch_size"], entries["compacted_offset"] = table.queue_offset[rows], 1, -1
        for place, row in enumerate(rows):
            properties = parse_properties(table.properties(int(row)))
            base, count = java_number(properties.get(_BATCH_BASE), 64), java_number(properties.get(_BATCH_SIZE), 16)
            if base is not None and count is not None:
                entries["queue_offset"][place], entries["batch_size"][place] = base, count
        queue.put_batches(entries)

    def _note_early(self, queue: QueueState, before: int, table: FrameTable, rows: Ints) -> None:
        """Note the entries that a delay queue got without a delivery time.

        Records and entries are both in order, so the last ones match. A new queue starts at its first record's number.
        """
        end = queue.max_offset
        added = min(end - before, len(rows)) if queue.starts else 0
        for number, row in zip(range(end - added, end), rows[len(rows) - added :], strict=True):
            if len(self.early) < EARLY_LIMIT and table.delay_level[row] > 0:
                properties = parse_properties(table.properties(int(row)))
                self.early.append(
                    EarlyDelivery(
                        properties.get(REAL_TOPIC, ""),
                        queue.key.queue_id,
                        number,
                        int(table.own_phy_offset[row]),
                        int(table.delay_level[row]),
                    )
                )


def _by_group(group: Ints) -> list[Ints]:
    """Return the positions of each group's rows, in their order."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
