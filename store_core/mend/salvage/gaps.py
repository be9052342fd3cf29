"""Numbers of queues that no message has any more: a tombstone in the log, or a dead entry in the queue (store behaviour 15.1).

A dead entry points to the last byte before a segment, with a size that reaches into it: it cannot be read, and a broker
passes over it alone. It breaks the ascending order of a queue, which brokers 5.x rely on once the entry's segment is the
first one, so it never stands there, nor at a queue's begin or end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Final, Protocol

import numpy as np

from store_core.codec.record import body_crc_ok
from store_core.derive.dispatch import light_queues
from store_core.derive.queues import Entry, QueueBuilder
from store_core.kernel.codes import FrameCode
from store_core.layout import paths, timer
from store_core.layout.queue import DEAD_ENTRY_SIZE_BYTES
from store_core.layout.record import MIN_RECORD_SIZE_BYTES, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from store_core.mend.salvage.derived import Derivation
from store_core.mend.salvage.evidence import standing_entry
from store_core.mend.salvage.fence import Fence, close_region
from store_core.mend.salvage.lost_record import LostRecord
from store_core.mend.salvage.mended import MendedLog
from store_core.mend.salvage.room import Room, Taken, with_numbers
from store_core.mend.salvage.rows import FEWEST_ROWS, LostTable
from store_core.mend.salvage.tombstones import Piece, TombstoneRun, smallest_tombstone_size_bytes
from store_core.read.entries import Entry as QueueEntry
from store_core.read.entries import is_dead
from store_core.read.records import read_message
from store_core.scan.frames import FrameTable
from store_core.scan.log import Progress
from store_core.scan.walks import Walks, behind
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


@dataclass(slots=True)
class _Gap:
    """Numbers of a queue that wait for tombstones, all of which have to stand between two offsets of the log."""

    key: QueueKey
    before: int
    after: int
    numbers: array[int] = field(default_factory=lambda: array("q"))
    is_front: bool = False  # no message of the queue stands before it
    must_be_walked: bool = False  # what stands for its numbers is seen by a walk alone


def fill_gaps(
    store: Store, found: _Salvage, table: LostTable, walks: Walks
) -> tuple[dict[tuple[QueueKey, int], Entry], bool]:
    """Entries for numbers that are missing between two messages of a queue, or before its first.

    Dead entries of an earlier run stay as they are. Else a tombstone where there is room between the two messages: elsewhere a later rebuild would take it for a new begin of
    the numbering. Else, or where numbers are to be skipped, a dead entry.
    """
    builder, log = found.derivation.queues(), found.mended.log
    entries: dict[tuple[QueueKey, int], Entry] = {}
    pieces = {
        (piece.phy_offset, piece.size_bytes): piece
        for fence in found.fences
        for piece in fence.pieces
        if isinstance(piece, Piece) and piece.tombstone_of is not None
    }
    waiting: list[_Gap] = []
    fronts = _Fronts(log, found.fences)
    for key in found.derivation.queue_keys:
        is_light = key.topic.startswith(paths.LMQ_PREFIX)  # its entries are for records of other topics
        if (front := fronts.of(builder, key)) is not None:
            waiting.append(front)
        for first, count in builder.summary(key).gaps:
            before, after = builder.phy_offset_of(key, first - 1), builder.phy_offset_of(key, first + count)
            if before is None or after is None or count > MOST_GAP_NUMBERS:
                found.unfilled.append((key, first, count))
                continue
            gap = _Gap(key, before, after)
            waiting.append(gap)
            dead = _dead_entry(log, after)
            is_skipped = found.skips and dead is not None and dead[0] >= store.log.min_phy_offset
            for queue_offset in range(first, first + count):
                standing = standing_entry(store, key, queue_offset)
                if standing is not None and is_dead(QueueEntry(queue_offset, *standing), store.log.file_size_bytes):
                    entries[key, queue_offset] = standing  # an earlier run left it, and told of its message as lost
                elif is_light and standing is not None and (piece := pieces.get(standing[:2])) is not None:
                    entries[key, queue_offset] = (piece.phy_offset, piece.size_bytes, 0)
                    gap.after = piece.phy_offset
                    gap = _Gap(key, piece.phy_offset, after)
                    waiting.append(gap)
                elif (
                    standing is not None
                    and gap.before < standing[0] < after
                    and _leads_on(log, key, queue_offset, standing)
                ):
                    entries[key, queue_offset] = standing
                    gap.after = standing[0]
                    gap = _Gap(key, standing[0], after)
                    waiting.append(gap)
                elif is_skipped:
                    _leave_dead(found, entries, key, queue_offset, dead)
                else:
                    gap.numbers.append(queue_offset)
    entries |= _placed(found, waiting, table, walks)
    for gap in waiting:
        dead = _dead_entry(log, gap.after) if gap.numbers and not gap.is_front else None
        for queue_offset in gap.numbers:
            _leave_dead(found, entries, gap.key, queue_offset, dead)
    return entries, any(gap.must_be_walked for gap in waiting)


class _Fronts:
    """The numbers before queues' first messages, where the log is there from its begin and had room for them in a hole."""

    def __init__(self, log: SegmentSequence, fences: list[Fence]) -> None:
        closed = fences if log.min_phy_offset == 0 else []
        self._ends = [fence.region.end_phy_offset for fence in closed]
        self._room = [0, *accumulate(fence.region.size_bytes for fence in closed)]

    def of(self, builder: QueueBuilder, key: QueueKey) -> _Gap | None:
        count = builder.summary(key).first_queue_offset
        after = builder.phy_offset_of(key, count) if count else None
        if after is None or key.topic.startswith(paths.LMQ_PREFIX):
            return None
        room = self._room[bisect_right(self._ends, after)]
        if count > min(room // MIN_RECORD_SIZE_BYTES, MOST_GAP_NUMBERS):
            return None
        return _Gap(key, -1, after, array("q", range(count)), is_front=True)


def _leave_dead(
    found: _Salvage, entries: dict[tuple[QueueKey, int], Entry], key: QueueKey, queue_offset: int, dead: Entry | None
) -> None:
    if dead is not None:
        entries[key, queue_offset] = dead
        found.dead.append((key, queue_offset))
    found.unfilled.append((key, queue_offset, 1))


def _dead_entry(log: SegmentSequence, following_phy_offset: int) -> Entry | None:
    """An entry that crosses the end of the segment before: unreadable, and only itself is skipped (15.1)."""
    segment = log.find(following_phy_offset)
    if segment is None or segment.phy_offset == 0:
        return None
    return segment.phy_offset - 1, DEAD_ENTRY_SIZE_BYTES, 0


def _leads_on(log: SegmentSequence, key: QueueKey, queue_offset: int, entry: Entry) -> bool:
    """Whether a light queue's entry leads to a whole record whose list of queues is damaged: it is in that queue by the entry alone."""
    if not key.topic.startswith(paths.LMQ_PREFIX):
        return False
    message = read_message(log, entry[0], entry[1])
    if message is None or (message.own_phy_offset, message.size_bytes) != entry[:2] or not body_crc_ok(message):
        return False
    return dict(light_queues(message.properties)).get(key.topic, queue_offset) == queue_offset


def _placed(found: _Salvage, gaps: list[_Gap], table: LostTable, walks: Walks) -> dict[tuple[QueueKey, int], Entry]:
    """Put more tombstones into fences that have room between a gap's two offsets; where they came to stand."""
    placed: dict[tuple[QueueKey, int], Entry] = {}
    left = [gap for gap in gaps if gap.numbers]
    told, done = walks.piece(sum(fence.region.size_bytes for fence in found.fences)) if left else None, 0
    for number, fence in enumerate(found.fences if left else ()):
        mine = [gap for gap in left if gap.before < fence.end_phy_offset and fence.phy_offset < gap.after]
        if mine and fence.pieces:  # else it is left open
            placed |= _fill(found, number, mine, table, behind(told, done))
            left = [gap for gap in left if gap.numbers]
        done += fence.region.size_bytes
    return placed


def _fill(
    found: _Salvage, number: int, gaps: list[_Gap], table: LostTable, on_progress: Progress | None
) -> dict[tuple[QueueKey, int], Entry]:
    """Close a fence anew with tombstones for what waits for it; where they came to stand.

    They take room that nothing takes, and where that is not enough for all, others are made as small as they may be. Numbers of one gap
    rise with their places, for all of them need the same room and take the first there is. Many numbers become rows.
    """
    fence = found.fences[number]
    close = partial(close_region, fence.region, property_crc=found.property_crc)
    runs = [piece.lost for piece in fence.pieces if isinstance(piece, TombstoneRun)]
    standing, taken = _standing(fence), _taken(Room(fence), gaps)
    is_tight = False
    if _count(taken) < sum(len(gap.numbers) for gap in gaps):
        small = _standing(fence, is_tight=True)
        taken_too = _taken(Room(close([*small, *runs])), gaps)
        if is_tight := _count(taken_too) > _count(taken):
            standing, taken = small, taken_too
    if not _count(taken):
        return {}
    wanted: set[LostRecord] = set()
    if runs or _count(taken) >= FEWEST_ROWS:
        numbered = (
            (gap.key, np.array(gap.numbers[: len(each.places)], np.int64), each)
            for gap, each in zip(gaps, taken, strict=True)
        )
        again = close([*standing, *with_numbers(fence, table, numbered)], on_progress=on_progress)
    else:
        wanted = {
            LostRecord(gap.key.topic, gap.key.queue_id, queue_offset, place, size)
            for gap, (places, size) in zip(gaps, taken, strict=True)
            for queue_offset, place in zip(gap.numbers, places.tolist(), strict=False)
        }
        again = close([*standing, *wanted], on_progress=on_progress)
    if again.given_up != fence.given_up or again.unplaced:
        return {}
    again.unplaced, again.skipped = fence.unplaced, fence.skipped
    found.fences[number] = again
    placed: dict[tuple[QueueKey, int], Entry] = {}
    for at, piece in enumerate(again.pieces):
        if not isinstance(piece, Piece) or (lost := piece.tombstone_of) is None:
            continue
        if lost in wanted:
            placed[QueueKey(lost.topic, lost.queue_id), lost.queue_offset] = (piece.phy_offset, piece.size_bytes, 0)
            unplaced = LostRecord(lost.topic, lost.queue_id, lost.queue_offset)  # where it lay nobody knows
            again.pieces[at] = replace(piece, tombstone_of=unplaced)
        elif lost in standing:
            again.pieces[at] = replace(piece, tombstone_of=standing[lost])
    for gap, (places, _) in zip(gaps, taken, strict=True):
        if len(places):
            gap.must_be_walked |= gap.is_front or is_tight or not wanted
            gap.before = int(places[-1])
            del gap.numbers[: len(places)]
    return placed


def _taken(room: Room, gaps: list[_Gap]) -> list[Taken]:
    return [room.take(gap.key, len(gap.numbers), (gap.before, gap.after)) for gap in gaps]


def _count(taken: list[Taken]) -> int:
    return sum(len(places) for places, _ in taken)


def _standing(fence: Fence, *, is_tight: bool = False) -> dict[LostRecord, LostRecord]:
    """Lost records where their tombstones stand, runs apart, and as they were; in the least room that leaves some for another frame."""
    found = {}
    for piece in fence.pieces:
        lost = piece.tombstone_of if isinstance(piece, Piece) else None
        if lost is None or lost == fence.given_up:
            continue
        size = piece.size_bytes
        if is_tight:
            least = smallest_tombstone_size_bytes(lost, property_crc=fence.property_crc)
            size = least if size - least >= fence.min_record_size_bytes else size
        found[replace(lost, phy_offset=piece.phy_offset, size_bytes=size)] = lost
    return found
