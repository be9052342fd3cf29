"""Decide which lost messages a dead entry may replace if numbers are to be skipped (store behaviour 15.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.load import batch_topics_of
from store_core.kernel.codes import FrameCode
from store_core.layout import paths, timer
from store_core.layout.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import Lost, LostRows, LostTable, Rows, records_of_rows
from store_core.scan.frames import FrameTable
from store_core.storage.store import QueueKey, Store

_BROKER_TOPICS: Final = "RMQ_SYS_"
MOST_NAMED: Final = 10
# Reasons for a tombstone instead, in the order in which they are checked.
_SEVERAL, _OF_BATCHES, _OF_BROKER, _FIRST_SEGMENT = 1, 2, 3, 4
_REASONS: Final = (
    "",
    "several queue entries belong to it",
    "a batch queue has no dead entries",
    "the broker itself reads its queue",
    "its segment is the log's first one",
)
_FIRST_OF_QUEUE: Final = "it is the first of its queue"
_LAST_OF_QUEUE: Final = "it is the last of its queue"

Place = tuple[int, int]  # phy_offset, queue_offset


@dataclass(slots=True)
class QueueBounds:
    """The first and the last good message of each queue in log order; a sink of ``survey_log``."""

    first: dict[QueueKey, Place] = field(default_factory=dict)
    last: dict[QueueKey, Place] = field(default_factory=dict)

    def add(self, table: FrameTable) -> None:
        type_ = table.sys_flag & TRANSACTION_MASK
        good = table.messages & ~table.of_code(FrameCode.BAD_CRC)
        good &= (type_ == TRANSACTION_NONE) | (type_ == TRANSACTION_COMMIT)
        rows = np.flatnonzero(good)
        both = np.stack([table.topic_id[rows].astype(np.int64), table.queue_id[rows].astype(np.int64)], axis=1)
        firsts = np.unique(both, axis=0, return_index=True)[1]
        lasts = len(rows) - 1 - np.unique(both[::-1], axis=0, return_index=True)[1]
        for row in rows[firsts].tolist():
            self.first.setdefault(_key(table, row), _place(table, row))
        for row in rows[lasts].tolist():
            self.last[_key(table, row)] = _place(table, row)


def _key(table: FrameTable, row: int) -> QueueKey:
    return QueueKey(table.topic(row).decode("utf-8", "replace"), int(table.queue_id[row]))


def _place(table: FrameTable, row: int) -> Place:
    return int(table.phy_offset[row]), int(table.queue_offset[row])


@dataclass(slots=True)
class Kept:
    """The number of lost messages that get a tombstone although dead entries were requested; reasons for the first few."""

    messages: int = 0
    first: list[tuple[LostRecord, str]] = field(default_factory=list)

    def add(self, lost: LostRecord, why: str) -> None:
        self.messages += 1
        if len(self.first) < MOST_NAMED:
            self.first.append((lost, why))

    def add_rows(self, table: LostTable, rows: Rows, whys: Sequence[str]) -> None:
        self.messages += len(rows)
        limit = MOST_NAMED - len(self.first)
        self.first += zip(records_of_rows(table, rows[:limit]), whys, strict=False)


@dataclass(slots=True)
class _Edges:
    """The lost messages of a queue with the least and the greatest number, which may be its ends."""

    messages: int
    lowest: LostRecord
    highest: LostRecord


class Skipping:
    """The choice between dead entries and tombstones. A dead entry may replace a lost message that

    * has one queue entry,
    * lies between two other messages of its queue,
    * lies outside the log's first segment, and
    * is in a queue that consumers read, not the broker, and that is no batch queue.

    The caller passes all lost records to ``look_at``, then calls ``decide`` once, then ``parted``.
    """

    def __init__(self, store: Store, bounds: QueueBounds) -> None:
        self.kept = Kept()
        self._bounds = bounds
        self._segment_size_bytes = size = store.log.file_size_bytes
        self._first_segment = store.log.min_phy_offset // size if size else 0
        self._batch_topics = batch_topics_of(store).union(key.topic for key in store.batch_queues)
        self._edges: dict[QueueKey, _Edges] = {}
        self._kept_places: set[int] = set()

    def look_at(self, lost_records: Iterable[Lost]) -> None:
        for lost in lost_records:
            if isinstance(lost, LostRows):
                for chunk in lost.chunks():
                    self._look_at_rows(lost.table, chunk)
            elif why := self._why_not(lost):
                self.kept.add(lost, why)
            else:
                self._note_edges(QueueKey(lost.topic, lost.queue_id), 1, lost, lost)

    def decide(self) -> None:
        """Keep the first and the last message of each queue."""
        for key, edges in self._edges.items():
            remaining = edges.messages
            if not _is_between(self._bounds.first.get(key), edges.lowest, before=True):
                self._keep(edges.lowest, _FIRST_OF_QUEUE)
                remaining -= 1
            if remaining and not _is_between(self._bounds.last.get(key), edges.highest, before=False):
                self._keep(edges.highest, _LAST_OF_QUEUE)

    def parted(self, lost_records: Iterable[Lost]) -> tuple[list[Lost], list[Lost]]:
        """Return the records that need a tombstone, and those that dead entries will replace."""
        kept: list[Lost] = []
        dead: list[Lost] = []
        for lost in lost_records:
            if isinstance(lost, LostRecord):
                (kept if self._why_not(lost) or lost.phy_offset in self._kept_places else dead).append(lost)
                continue
            kept_rows: list[Lost] = []  # a list of its own, because other records may lie before these rows
            for chunk in lost.chunks():
                is_dead = self._reasons(lost.table, chunk) == 0
                is_dead &= ~np.isin(chunk["phy_offset"], list(self._kept_places))
                if is_dead.any():
                    dead.append(lost.table.append(chunk[is_dead]))
                if not is_dead.all():
                    lost.table.add_all(kept_rows, chunk[~is_dead])
            kept += kept_rows
        return kept, dead

    def _keep(self, lost: LostRecord, why: str) -> None:
        self.kept.add(lost, why)
        self._kept_places.add(lost.phy_offset or 0)

    def _look_at_rows(self, table: LostTable, rows: Rows) -> None:
        reasons = self._reasons(table, rows)
        ruled_out = np.flatnonzero(reasons)
        self.kept.add_rows(table, rows[ruled_out], [_REASONS[reason] for reason in reasons[ruled_out[:MOST_NAMED]]])
        rows = rows[reasons == 0]
        numbers, which = np.unique(rows["queue"], return_inverse=True)
        keys = [table.queues[number] for number in numbers.tolist()]
        queue = np.array([keys.index(key) for key in keys], np.int64)[which]  # one number for all sources
        for number in sorted(set(queue.tolist()), key=queue.tolist().index):
            in_queue = rows[queue == number]
            numbered = in_queue["queue_offset"]
            edges = in_queue[[int(numbered.argmin()), len(in_queue) - 1 - int(numbered[::-1].argmax())]]
            self._note_edges(keys[number], len(in_queue), *records_of_rows(table, edges))

    def _note_edges(self, key: QueueKey, messages: int, lowest: LostRecord, highest: LostRecord) -> None:
        known = self._edges.setdefault(key, _Edges(0, lowest, highest))
        known.messages += messages
        known.lowest = min(known.lowest, lowest, key=_queue_offset)
        known.highest = max(highest, known.highest, key=_queue_offset)

    def _reasons(self, table: LostTable, rows: Rows) -> NDArray[np.int8]:
        """Return for each row the index in _REASONS of what rules out a dead entry; 0 for nothing."""
        is_several = (rows["batch_size"] > 1) | (rows["lights"] > 0)
        is_batch = np.array([key.topic in self._batch_topics for key in table.queues], bool)[rows["queue"]]
        is_broker = np.array([_is_of_broker(key.topic) for key in table.queues], bool)[rows["queue"]]
        is_first = np.ones(len(rows), bool)
        if self._segment_size_bytes:
            is_first = rows["phy_offset"] // self._segment_size_bytes <= self._first_segment
        found: NDArray[np.int8] = np.select(
            [is_several, is_batch, is_broker, is_first], [_SEVERAL, _OF_BATCHES, _OF_BROKER, _FIRST_SEGMENT]
        ).astype(np.int8)
        return found

    def _why_not(self, lost: LostRecord) -> str:
        size = self._segment_size_bytes
        if lost.batch_size > 1 or lost.light_queues:
            return _REASONS[_SEVERAL]
        if lost.topic in self._batch_topics:
            return _REASONS[_OF_BATCHES]
        if _is_of_broker(lost.topic):
            return _REASONS[_OF_BROKER]
        if lost.phy_offset is None or not size or lost.phy_offset // size <= self._first_segment:
            return _REASONS[_FIRST_SEGMENT]
        return ""


def _queue_offset(lost: LostRecord) -> int:
    return lost.queue_offset


def _is_of_broker(topic: str) -> bool:
    return topic in (paths.SCHEDULE_TOPIC, timer.TIMER_TOPIC) or topic.startswith(_BROKER_TOPICS)


def _is_between(place: Place | None, lost: LostRecord, *, before: bool) -> bool:
    """Return True if a good message is on that side of ``lost``, in the log and in the numbering."""
    if place is None or lost.phy_offset is None:
        return False
    own = (lost.phy_offset, lost.queue_offset)
    low, high = (place, own) if before else (own, place)
    return low[0] < high[0] and low[1] < high[1]
