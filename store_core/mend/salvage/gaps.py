"""Numbers of queues that no message has any more: a tombstone in the log, or a dead entry in the queue (store behaviour 15.1).

A dead entry points to the last byte before a segment, with a size that reaches into it: it cannot be read, and a broker
passes over it alone. It breaks the ascending order of a queue, which brokers 5.x rely on once the entry's segment is the
first one, so it never stands there, nor at a queue's begin or end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from store_core.derive.queues import Entry
from store_core.kernel.codes import FrameCode
from store_core.layout import paths, timer
from store_core.layout.queue import DEAD_ENTRY_SIZE_BYTES, ENTRY
from store_core.layout.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from store_core.mend.salvage.derived import Derivation
from store_core.mend.salvage.fence import Fence, Piece, close_region
from store_core.mend.salvage.mended import MendedLog
from store_core.mend.salvage.survey import LostRecord
from store_core.read.entries import Entry as QueueEntry
from store_core.read.entries import is_dead
from store_core.scan.frames import FrameTable
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

MOST_GAP_NUMBERS: Final = 1 << 20  # more missing numbers than this are not filled one by one
_BROKER_TOPICS: Final = "RMQ_SYS_"

Place = tuple[int, int]  # phy_offset, queue_offset


class _Salvage(Protocol):
    @property
    def fences(self) -> list[Fence]: ...
    @property
    def mended(self) -> MendedLog: ...
    @property
    def derivation(self) -> Derivation: ...
    @property
    def unfilled(self) -> list[tuple[QueueKey, int, int]]: ...
    @property
    def dead(self) -> list[tuple[QueueKey, int]]: ...
    @property
    def property_crc(self) -> bool: ...
    @property
    def skips(self) -> bool: ...


@dataclass(slots=True)
class QueueBounds:
    """A sink of the survey: the first and the last good message of each queue, in log order."""

    first: dict[QueueKey, Place] = field(default_factory=dict)
    last: dict[QueueKey, Place] = field(default_factory=dict)

    def add(self, table: FrameTable) -> None:
        type_ = table.sys_flag & TRANSACTION_MASK
        good = table.messages & (table.code != FrameCode.BAD_CRC)
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


@dataclass(frozen=True, slots=True)
class Kept:
    """A lost message that gets a tombstone although dead entries were asked for, and why."""

    lost: LostRecord
    why: str


def skippable(store: Store, lost: Iterable[LostRecord], bounds: QueueBounds) -> tuple[set[LostRecord], list[Kept]]:
    """Which lost records a dead entry may stand for, and why not for the others.

    It must lie between two messages of its queue, in no first segment, in a queue that consumers read, not the broker.
    """
    by_queue: dict[QueueKey, list[LostRecord]] = {}
    kept: list[Kept] = []
    for record in lost:
        if why := _why_not(store, record):
            kept.append(Kept(record, why))
        else:
            by_queue.setdefault(QueueKey(record.topic, record.queue_id), []).append(record)
    dead: set[LostRecord] = set()
    for key, records in by_queue.items():
        records.sort(key=lambda r: r.queue_offset)
        if not _is_between(bounds.first.get(key), records[0], before=True):
            kept.append(Kept(records.pop(0), "it is the first of its queue"))
        if records and not _is_between(bounds.last.get(key), records[-1], before=False):
            kept.append(Kept(records.pop(), "it is the last of its queue"))
        dead.update(records)
    return dead, kept


def _is_between(place: Place | None, lost: LostRecord, *, before: bool) -> bool:
    """Whether a good message stands on that side, in the log and in the numbering."""
    if place is None or lost.phy_offset is None:
        return False
    mine = (lost.phy_offset, lost.queue_offset)
    low, high = (place, mine) if before else (mine, place)
    return low[0] < high[0] and low[1] < high[1]


def _why_not(store: Store, lost: LostRecord) -> str:
    if lost.batch_size > 1 or lost.light_queues:
        return "several queue entries belong to it"
    if lost.topic in (paths.SCHEDULE_TOPIC, timer.TIMER_TOPIC) or lost.topic.startswith(_BROKER_TOPICS):
        return "the broker itself reads its queue"
    size = store.log.file_size_bytes
    if lost.phy_offset is None or not size or lost.phy_offset // size <= store.log.min_phy_offset // size:
        return "its segment is the log's first one"
    return ""


def fill_gaps(store: Store, found: _Salvage) -> dict[tuple[QueueKey, int], Entry]:
    """Entries for numbers that are missing between two messages of a queue.

    Dead entries of an earlier run stay as they are. Else a tombstone where there is room between the two messages: elsewhere a later rebuild would take it for a new begin of
    the numbering. Else, or where numbers are to be skipped, a dead entry.
    """
    builder, log = found.derivation.queues(), found.mended.log
    entries: dict[tuple[QueueKey, int], Entry] = {}
    for key in found.derivation.queue_keys:
        for first, count in builder.summary(key).gaps:
            before, after = builder.phy_offset_of(key, first - 1), builder.phy_offset_of(key, first + count)
            if before is None or after is None or count > MOST_GAP_NUMBERS:
                found.unfilled.append((key, first, count))
                continue
            for queue_offset in range(first, first + count):
                if (ours := _left_dead(store, key, queue_offset)) is not None:
                    entries[key, queue_offset] = ours
                    continue
                dead = _dead_entry(log, after)
                piece = _pointed_to(store, found, key, queue_offset)
                if piece is None and not (found.skips and dead is not None and dead[0] >= store.log.min_phy_offset):
                    piece = _placed(found, LostRecord(key.topic, key.queue_id, queue_offset), before, after)
                if piece is not None:
                    entries[key, queue_offset] = (piece.phy_offset, piece.size_bytes, 0)
                    before = piece.phy_offset
                    continue
                if dead is not None:
                    entries[key, queue_offset] = dead
                    found.dead.append((key, queue_offset))
                found.unfilled.append((key, queue_offset, 1))
    return entries


def _dead_entry(log: SegmentSequence, following_phy_offset: int) -> Entry | None:
    """An entry that crosses the end of the segment before: unreadable, and only itself is skipped (15.1)."""
    segment = log.find(following_phy_offset)
    if segment is None or segment.phy_offset == 0:
        return None
    return segment.phy_offset - 1, DEAD_ENTRY_SIZE_BYTES, 0


def _left_dead(store: Store, key: QueueKey, queue_offset: int) -> Entry | None:
    """The dead entry that an earlier run has left there: its message was told of as lost then."""
    entry = _standing_entry(store, key, queue_offset)
    size = store.log.file_size_bytes
    return entry if entry is not None and is_dead(QueueEntry(queue_offset, *entry), size) else None


def _standing_entry(store: Store, key: QueueKey, queue_offset: int) -> Entry | None:
    files = store.queues.get(key)
    data = files.read(queue_offset * ENTRY.size_bytes, ENTRY.size_bytes) if files is not None else b""
    if len(data) < ENTRY.size_bytes:
        return None
    entry = ENTRY.read(data)
    return entry["phy_offset"], entry["size_bytes"], entry["tags_code"]


def _pointed_to(store: Store, found: _Salvage, key: QueueKey, queue_offset: int) -> Piece | None:
    """The tombstone that the queue's own entry points to: a light queue's entry for a record of another topic."""
    entry = _standing_entry(store, key, queue_offset)
    if entry is None:
        return None
    pieces = (p for fence in found.fences for p in fence.pieces)
    return next((p for p in pieces if p.tombstone_of is not None and (p.phy_offset, p.size_bytes) == entry[:2]), None)


def _placed(found: _Salvage, lost: LostRecord, before: int, after: int) -> Piece | None:
    """Put one more tombstone into a fence that has room and lies wholly between two offsets."""
    for number, fence in enumerate(found.fences):
        if not before < fence.region.phy_offset <= fence.region.end_phy_offset <= after:
            continue
        free = [p for p in fence.pieces if p.tombstone_of is None]
        if not free:
            continue
        tombstones = [
            replace(p.tombstone_of, phy_offset=p.phy_offset, size_bytes=p.size_bytes)
            for p in fence.pieces
            if p.tombstone_of is not None
        ]
        again = close_region(fence.region, tombstones, [lost], property_crc=found.property_crc)
        again.skipped = fence.skipped
        if not again.unplaced and again.given_up == fence.given_up:
            found.fences[number] = again
            return next(p for p in again.pieces if p.tombstone_of == lost)
    return None
