"""Close a damaged region of the log without moving an offset (store behaviour, section 15.1).

A region that a broker cannot walk over is covered completely: by tombstones for lost messages that are known (ordinary
records of their topic, queue and queue offset, with a body of zeros), by fillers (ROLLBACK records, which no broker
dispatches) where nothing is known, and by one blank where the region reaches the segment's end.

Tombstones whose neighbours in the log leave no room for their numbers are removed again. Such numbers come from damaged
heads, or from queue files or folders under wrong names, as a copy or restore may leave them, together with damage in the log
(tests/recovery/test_unfounded.py). A queue built from them would leave out good messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from store_core.codec.record import encode_blank
from store_core.derive.queues import QueueBuilder
from store_core.derive.spool import RowsByQueue
from store_core.layout import marks, paths, record
from store_core.recovery.damage_scan import Neighbour, Region
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import Lost, LostRows, Source, records_of_rows
from store_core.recovery.tombstones import (
    Piece,
    TombstoneRun,
    can_be_told,
    fillers,
    min_size_bytes,
    smallest_tombstone_size_bytes,
    tombstone,
)
from store_core.scan.log import Progress
from store_core.storage.store import QueueKey

Ints = NDArray[np.int64]


@dataclass(slots=True)
class ClosedRegion:
    """The records that close a region. ``given_up``: a readable neighbour that is replaced because no record fits the region.

    ``skipped``: lost records that get no tombstone, because their queues get dead entries. Without ``pieces`` the region is
    left as it is.
    """

    region: Region
    pieces: list[Piece | TombstoneRun] = field(default_factory=list)
    unplaced: list[Lost] = field(default_factory=list)
    skipped: list[Lost] = field(default_factory=list)
    given_up: LostRecord | None = None
    property_crc: bool = False  # records carry a property CRC

    @property
    def phy_offset(self) -> int:
        """The start of the first piece; before the region if that was widened."""
        return self.pieces[0].phy_offset if self.pieces else self.region.phy_offset

    @property
    def end_phy_offset(self) -> int:
        """The end of the last piece."""
        return self.pieces[-1].phy_offset + self.pieces[-1].size_bytes if self.pieces else self.region.end_phy_offset

    @property
    def min_record_size_bytes(self) -> int:
        """The least size of a record."""
        return min_size_bytes(property_crc=self.property_crc)

    @property
    def tombstones(self) -> list[Lost]:
        """The lost records that have a tombstone, in log order, as they were."""
        all_lost = (piece.lost if isinstance(piece, TombstoneRun) else piece.tombstone_of for piece in self.pieces)
        return [lost for lost in all_lost if lost is not None]

    def tombstones_and_lost(self, places: Sequence[int]) -> list[tuple[int, Lost]]:
        """Return the same with their tombstones' offsets; records of a run at ``places``, which rise, are separate."""
        found: list[tuple[int, Lost]] = []
        for piece in self.pieces:
            if isinstance(piece, TombstoneRun):
                found += [(lost.phy_offset or 0, lost) for lost in piece.lost.apart(places)]
            elif piece.tombstone_of is not None:
                found.append((piece.phy_offset, piece.tombstone_of))
        return found


@dataclass(frozen=True, slots=True)
class _Slot:
    start: int
    end: int
    lost: Lost | None = None  # None: free


def close_region(
    region: Region,
    known: Iterable[Lost],
    unplaced: Iterable[LostRecord] = (),
    *,
    property_crc: bool = False,
    on_progress: Progress | None = None,
) -> ClosedRegion:
    """Cover a region with records. ``known`` lost records have their place in it; ``unplaced`` ones go where there is room.

    A region that no record fits into is widened: over the blank after it, else over its smaller neighbour.
    ``property_crc``: new records carry one. ``on_progress`` receives the bytes that are covered so far.
    """
    closed_region = ClosedRegion(region, property_crc=property_crc)
    wide = _widened(region, closed_region)
    if wide.size_bytes < closed_region.min_record_size_bytes:  # the neighbour has no property CRC either
        closed_region.property_crc = property_crc = False
    if closed_region.given_up is not None:
        known = [*known, closed_region.given_up]
    encodable: list[Lost] = []
    waiting: list[LostRecord] = []
    not_encodable: list[LostRecord] = []
    for lost in known:
        if isinstance(lost, LostRows) or can_be_told(lost):
            encodable.append(lost)
        else:
            not_encodable.append(lost)
    for unplaced_record in unplaced:
        (waiting if can_be_told(unplaced_record) else not_encodable).append(unplaced_record)
    slots = _with_unplaced(_place(wide, encodable, closed_region, waiting), wide, waiting, closed_region)
    closed_region.unplaced += not_encodable
    timestamp = _timestamp(wide)
    for slot in slots:
        at_segment_end = wide.reaches_segment_end and slot.end == wide.end_phy_offset
        size = slot.end - slot.start
        if isinstance(slot.lost, LostRows):
            closed_region.pieces.append(TombstoneRun(slot.lost, timestamp, property_crc))
        elif slot.lost is not None:
            closed_region.pieces.append(tombstone(slot.lost, slot.start, size, timestamp, property_crc=property_crc))
        elif at_segment_end:
            closed_region.pieces.append(Piece(slot.start, size, ((0, encode_blank(size)),), timestamp, is_blank=True))
        else:
            closed_region.pieces += fillers(slot.start, slot.end, timestamp, property_crc=property_crc)
        if on_progress is not None:
            on_progress(slot.end - wide.phy_offset)
    return closed_region


def _widened(region: Region, closed_region: ClosedRegion) -> Region:
    if region.reaches_segment_end:
        if region.size_bytes >= record.MIN_BLANK_SIZE_BYTES:
            return region
        neighbour = region.before
    elif region.size_bytes >= closed_region.min_record_size_bytes:
        return region
    elif region.blank_follows:
        return replace(region, end_phy_offset=region.segment_end_phy_offset, reaches_segment_end=True)
    else:
        inside = [
            n for n in (region.before, region.after) if n is not None and n.phy_offset >= region.segment_phy_offset
        ]
        neighbour = min(inside, key=lambda n: n.size_bytes, default=None)
    if neighbour is None:
        return region
    if neighbour.in_queue:
        closed_region.given_up = _given_up(neighbour)
    start = min(region.phy_offset, neighbour.phy_offset)
    end = max(region.end_phy_offset, neighbour.phy_offset + neighbour.size_bytes)
    return replace(region, phy_offset=start, end_phy_offset=end)


def _given_up(neighbour: Neighbour) -> LostRecord:
    return LostRecord(
        neighbour.topic, neighbour.queue_id, neighbour.queue_offset, neighbour.phy_offset, neighbour.size_bytes
    )


def _timestamp(region: Region) -> int:
    """Return a neighbour's store time, never 0: a first record of time 0 keeps crash recovery from starting there."""
    for neighbour in (region.before, region.after):
        if neighbour is not None and neighbour.store_timestamp_ms > 0:
            return neighbour.store_timestamp_ms
    return 1


def _place(
    region: Region, known: Iterable[Lost], closed_region: ClosedRegion, waiting: list[LostRecord]
) -> list[_Slot]:
    """Return slots over the whole region, with known records as near to their places as whole frames allow.

    Records without room there are added to ``waiting``.
    """
    limit = region.end_phy_offset - (record.MIN_BLANK_SIZE_BYTES if region.reaches_segment_end else 0)
    slots: list[_Slot] = []
    cursor = region.phy_offset
    remaining = deque(sorted(known, key=lambda k: k.phy_offset or 0))
    displaced: list[LostRecord] = []
    while remaining:
        lost = remaining.popleft()
        start = max(lost.phy_offset or cursor, cursor)
        is_close = 0 < start - cursor < closed_region.min_record_size_bytes
        if isinstance(lost, LostRows):
            end = lost.end_phy_offset
            if is_close or start != lost.phy_offset:
                remaining.extendleft(reversed(list(lost.without_first())))
                continue
            reaches_next = bool(remaining) and end > (remaining[0].phy_offset or end)
            if (
                end > limit
                or reaches_next
                or (not region.reaches_segment_end and 0 < limit - end < closed_region.min_record_size_bytes)
            ):
                remaining.extendleft(reversed(list(lost.without_last())))
                continue
        else:
            size = lost.size_bytes
            if size > marks.MAX_FILLER_SIZE_BYTES:
                size = smallest_tombstone_size_bytes(lost, property_crc=closed_region.property_crc)
            if is_close:
                start, size = cursor, size + start - cursor
            end = min(start + size, limit)
            least = smallest_tombstone_size_bytes(lost, marked=False, property_crc=closed_region.property_crc)
            is_pushed = start > (lost.phy_offset or start)
            # A record with a wrong place or size must not move all records after it.
            following = _first_from(remaining, start if is_pushed else start + least)
            if following is not None:
                end = min(end, following)
            if not region.reaches_segment_end and 0 < limit - end < closed_region.min_record_size_bytes:
                end = limit
            if end - start < least:
                if not (is_pushed and slots and _is_of(slots[-1].lost, lost)):
                    displaced.append(lost)
                continue
        if start > cursor:
            slots.append(_Slot(cursor, start))
        slots.append(_Slot(start, end, lost))
        cursor = end
    if cursor < region.end_phy_offset:
        slots.append(_Slot(cursor, region.end_phy_offset))
    waiting[:0] = displaced
    return slots


def _first_from(remaining: Iterable[Lost], phy_offset: int) -> int | None:
    """Return the start of the first lost record at or after an offset; the records are in log order."""
    for lost in remaining:
        place = lost.first_from(phy_offset) if isinstance(lost, LostRows) else lost.phy_offset
        if place is not None and place >= phy_offset:
            return place
    return None


def _is_of(previous: Lost | None, lost: LostRecord) -> bool:
    """Return True if the last record of the previous slot is the same message."""
    last = [*previous.without_last()][-1] if isinstance(previous, LostRows) else previous
    return isinstance(last, LostRecord) and (last.topic, last.queue_id, last.queue_offset) == (
        lost.topic,
        lost.queue_id,
        lost.queue_offset,
    )


def _with_unplaced(
    slots: list[_Slot], region: Region, waiting: Iterable[LostRecord], closed_region: ClosedRegion
) -> list[_Slot]:
    """Return the slots with unplaced records in free ones, whose rest is empty or has room for a frame."""
    taken = [slot for slot in slots if slot.lost is not None]
    free = [slot for slot in slots if slot.lost is None]
    for lost in waiting:
        need = smallest_tombstone_size_bytes(lost, property_crc=closed_region.property_crc)
        for place, slot in enumerate(free):
            last = region.reaches_segment_end and slot.end == region.end_phy_offset
            spare = record.MIN_BLANK_SIZE_BYTES if last else closed_region.min_record_size_bytes
            room = slot.end - slot.start
            if room >= need + spare or (room == need and not last):
                taken.append(_Slot(slot.start, slot.start + need, lost))
                free[place : place + 1] = [_Slot(slot.start + need, slot.end)] if room > need else []
                break
        else:
            closed_region.unplaced.append(lost)
    return sorted([*taken, *free], key=lambda slot: slot.start)


def without_unfounded(closed_regions: list[ClosedRegion], builder: QueueBuilder, rows: RowsByQueue) -> bool:
    """Close regions again without impossible tombstones and return True if there were any.

    Removed records with a readable head are still reported as lost.
    """
    closed = [closed_region for closed_region in closed_regions if closed_region.pieces]
    starts = np.array([closed_region.phy_offset for closed_region in closed], np.int64)
    ends = np.array([closed_region.end_phy_offset for closed_region in closed], np.int64)
    parts = [
        part
        for key in (builder.queue_keys() if closed else ())
        if not key.topic.startswith(paths.LMQ_PREFIX)
        for part in _unfounded(_numbered(key, builder, rows), starts, ends)
    ]
    if not parts:
        return False
    places = np.sort(np.concatenate(parts))
    for index, closed_region in enumerate(closed_regions):
        low, high = np.searchsorted(places, [closed_region.phy_offset, closed_region.end_phy_offset])
        if closed_region.pieces and low < high:
            closed_regions[index] = _without(closed_region, places[low:high])
    return True


def _numbered(key: QueueKey, builder: QueueBuilder, rows: RowsByQueue) -> Iterator[tuple[Ints, Ints]]:
    """Yield offsets and numbers of a queue's records in log order; -1 if the builder leaves one out."""
    misnumbered = builder.summary(key).misnumbered
    odd = np.array([item.row for item in misnumbered], np.int64)
    placed = np.array([-1 if item.placed_at is None else item.placed_at for item in misnumbered], np.int64)
    first = 0
    for chunk in rows.rows(key):
        numbers = chunk["queue_offset"].astype(np.int64)
        run = np.cumsum(np.r_[0, np.diff(numbers) != 1])
        here = (odd >= first) & (odd < first + len(chunk))
        at, now = odd[here] - first, placed[here]
        numbers[at[now >= 0]] = now[now >= 0]
        numbers[np.isin(run, run[at[now < 0]])] = -1
        yield chunk["phy_offset"].astype(np.int64), numbers
        first += len(chunk)


def _unfounded(chunks: Iterable[tuple[Ints, Ints]], starts: Ints, ends: Ints) -> Iterator[Ints]:
    """Yield offsets of tombstones, which lie in [starts, ends), whose numbers their neighbours rule out."""
    before: int | None = None
    held: list[tuple[Ints, Ints]] = []  # tombstones after it
    for places, numbers in chunks:
        closed_region = np.searchsorted(starts, places, "right") - 1
        is_tombstone = (closed_region >= 0) & (places < ends[closed_region])
        taken = is_tombstone | (numbers >= 0)
        places, numbers, is_tombstone = places[taken], numbers[taken], is_tombstone[taken]
        for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(is_tombstone)) + 1):
            if not len(run):
                continue
            if is_tombstone[run[0]]:
                held.append((places[run], numbers[run]))
                continue
            yield from _ruled_out(held, before, int(numbers[run[0]]))
            before, held = int(numbers[run[-1]]), []
    yield from _ruled_out(held, before, None)


def _ruled_out(held: Sequence[tuple[Ints, Ints]], before: int | None, after: int | None) -> Iterator[Ints]:
    for places, numbers in held:
        fits = numbers >= 0
        if before is None:
            pass  # good messages after them count anyway
        elif after is None:
            fits &= numbers > before
        elif after > before:
            fits &= (numbers > before) & (numbers < after)
        else:  # the topic was deleted and created again in between
            fits &= (numbers > before) | (numbers < after)
        if not fits.all():
            yield places[~fits]


def _without(closed_region: ClosedRegion, places: Ints) -> ClosedRegion:
    known: list[Lost] = []
    reported: list[Lost] = []
    for piece in closed_region.pieces:
        if isinstance(piece, TombstoneRun):
            table = piece.lost.table
            for chunk in piece.lost.chunks():
                is_out = np.isin(chunk["phy_offset"], places)
                reported += records_of_rows(table, chunk[is_out & table.told_by(chunk, Source.HEAD)])
                if not is_out.all():
                    table.add_all(known, chunk[~is_out])
        elif piece.tombstone_of is not None and piece.tombstone_of != closed_region.given_up:
            if piece.phy_offset not in places:
                known.append(piece.tombstone_of)
            elif _has_head(piece.tombstone_of):
                reported.append(piece.tombstone_of)
    still_unplaced: list[Lost] = []
    for lost in closed_region.unplaced:  # tombstones that go now may have taken their room
        has_place = isinstance(lost, LostRecord) and lost.phy_offset is not None and can_be_told(lost)
        (known if has_place else still_unplaced).append(lost)
    new_region = close_region(closed_region.region, known, property_crc=closed_region.property_crc)
    new_region.unplaced += [*still_unplaced, *reported]
    new_region.skipped = closed_region.skipped
    return new_region


def _has_head(lost: LostRecord) -> bool:
    return lost.store_timestamp_ms is not None
