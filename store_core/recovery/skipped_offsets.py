"""Decide which lost queue offsets a dead entry may replace, and find room for tombstones of the others (store behaviour 15.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.load import batch_topics_of
from store_core.kernel.codes import FrameCode
from store_core.layout import paths, record, timer
from store_core.layout.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from store_core.recovery.damaged_region import ClosedRegion
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import (
    ROW,
    InLogOrder,
    Lost,
    LostRows,
    LostTable,
    Rows,
    Source,
    joining,
    records_of_rows,
)
from store_core.recovery.tombstones import Piece, TombstoneRun, can_be_told, smallest_tombstone_size_bytes
from store_core.scan.frames import FrameTable
from store_core.storage.store import QueueKey, Store

_MOST_AT_ONCE: Final = 1 << 16
Ints = NDArray[np.int64]
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


@dataclass(frozen=True, slots=True)
class Runs:
    """Rising numbers as runs: each starts at its first and has ``counts`` numbers, ``step`` apart."""

    firsts: Ints
    counts: Ints
    step: int = 1

    def __len__(self) -> int:
        return int(self.counts.sum())

    def between(self, start: int, stop: int) -> Ints:
        """Return the numbers at indices [start, stop) of all."""
        ends = np.cumsum(self.counts)
        places = np.arange(start, stop)
        run = np.searchsorted(ends, places, "right")
        found: Ints = self.firsts[run] + (places - (ends - self.counts)[run]) * self.step
        return found


class Room:
    """The ranges of a closed region that no tombstone takes."""

    def __init__(self, closed_region: ClosedRegion) -> None:
        self._property_crc = closed_region.property_crc
        self._parts = [
            _Part(
                starts, sizes, record.MIN_BLANK_SIZE_BYTES if is_last else closed_region.min_record_size_bytes, is_last
            )
            for starts, sizes, is_last in _in_batches(_free_ranges(closed_region))
        ]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(self, key: QueueKey, count: int, between: tuple[int, int]) -> Runs:
        """Return the first free places between two log offsets for up to ``count`` tombstones of a queue.

        They are fewer if there is not room for all; their step is the room of each. The rest of a range is empty, or has room
        for a filler, or at the segment's end for its blank.
        """
        known = LostRecord(key.topic, key.queue_id, 0)
        none = np.zeros(0, np.int64)
        if not can_be_told(known):
            return Runs(none, none)
        size = smallest_tombstone_size_bytes(known, property_crc=self._property_crc)
        firsts, counts = [none], [none]
        for part in self._parts:
            first, taken = part.take(count, size, between)
            firsts.append(first)
            counts.append(taken)
            count -= int(taken.sum())
            if not count:
                break
        return Runs(np.concatenate(firsts), np.concatenate(counts), size)


@dataclass(slots=True)
class _Part:
    """Free ranges in log order: their starts and sizes. ``spare_bytes``: the least rest of a range, unless nothing stays."""

    starts: Ints
    sizes: Ints
    spare_bytes: int
    is_last: bool  # a single range that reaches the segment's end: ``spare_bytes`` stay for the blank

    def take(self, count: int, size_bytes: int, between: tuple[int, int]) -> tuple[Ints, Ints]:
        """Take room and return the starts of the taken ranges and how many tombstones each has."""
        capacity = np.maximum((self.sizes - self.spare_bytes) // size_bytes, 0)
        if not self.is_last:
            capacity = np.where(self.sizes % size_bytes == 0, self.sizes // size_bytes, capacity)
        capacity = np.where((self.starts > between[0]) & (self.starts < between[1]), capacity, 0)
        ends = np.minimum(np.cumsum(capacity), count)
        taken = np.diff(ends, prepend=0)
        first = self.starts
        self.starts = self.starts + taken * size_bytes
        self.sizes = self.sizes - taken * size_bytes
        return first[taken > 0], taken[taken > 0]


def with_numbers(
    closed_region: ClosedRegion, table: LostTable, taken: Iterable[tuple[QueueKey, Runs, Runs]]
) -> list[Lost]:
    """Return the region's runs of tombstones, and new ones for numbers with places from ``Room``, in log order."""
    lost: list[Lost] = []
    others = np.array([p.phy_offset for p in closed_region.pieces if isinstance(p, Piece) and p.tombstone_of], np.int64)
    with InLogOrder() as order:
        for piece in closed_region.pieces:
            for chunk in piece.lost.chunks() if isinstance(piece, TombstoneRun) else ():
                order.add(chunk)
        for key, numbers, places in taken:
            for at in range(0, len(places), _MOST_AT_ONCE):
                stop = min(at + _MOST_AT_ONCE, len(places))
                rows = np.zeros(stop - at, ROW)
                rows["phy_offset"], rows["size_bytes"] = places.between(at, stop), places.step
                rows["queue_offset"], rows["queue"] = numbers.between(at, stop), table.queue_number(key, Source.NUMBER)
                rows["batch_size"] = 1
                order.add(rows)
        for rows in order.stretches():
            in_between = (
                np.diff(np.searchsorted(others, rows["phy_offset"])) > 0
            )  # a tombstone that is no row stays there
            lost += map(table.append, np.split(rows, np.flatnonzero(~joining(rows) | in_between) + 1))
    return lost


def _in_batches(ranges: Iterable[tuple[Ints, Ints, bool]]) -> Iterator[tuple[Ints, Ints, bool]]:
    """Yield the same ranges in fewer arrays, the segment's last one separate."""
    starts, sizes, count = list[Ints](), list[Ints](), 0
    for some_starts, some_sizes, is_last in ranges:
        if starts and (is_last or count >= _MOST_AT_ONCE):
            yield np.concatenate(starts), np.concatenate(sizes), False
            starts, sizes, count = [], [], 0
        if is_last:
            yield some_starts, some_sizes, True
            continue
        starts.append(some_starts)
        sizes.append(some_sizes)
        count += len(some_starts)
    if starts:
        yield np.concatenate(starts), np.concatenate(sizes), False


def _free_ranges(closed_region: ClosedRegion) -> Iterator[tuple[Ints, Ints, bool]]:
    """Yield starts and sizes of free ranges, and True if the range reaches the segment's end."""
    start = end = -1
    for piece in closed_region.pieces:
        is_free = isinstance(piece, Piece) and piece.tombstone_of is None
        if is_free and piece.phy_offset == end:
            end += piece.size_bytes
            continue
        if start < end:
            yield np.array([start]), np.array([end - start]), False
        start, end = (piece.phy_offset, piece.phy_offset + piece.size_bytes) if is_free else (-1, -1)
        if isinstance(piece, TombstoneRun):
            yield from _between(piece.lost)
    if start < end:
        last = closed_region.pieces[-1]
        yield np.array([start]), np.array([end - start]), isinstance(last, Piece) and last.is_blank


def _between(lost: LostRows) -> Iterator[tuple[Ints, Ints, bool]]:
    end = lost.phy_offset
    for rows in lost.chunks():
        ends = rows["phy_offset"] + rows["size_bytes"]
        starts = np.r_[end, ends[:-1]]
        free = rows["phy_offset"] - starts
        yield starts[free > 0], free[free > 0], False
        end = int(ends[-1])


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
