"""Closing a hole in the log without moving an offset (store behaviour, section 15.1).

A region that a broker cannot walk over is covered completely: by tombstones for lost messages that are known (ordinary
records of their topic, queue and queue offset, with a body of zeros), by fillers (ROLLBACK records, which nobody
dispatches) where nothing is known, and by one blank where the region reaches the segment's end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from store_core.codec.hosts import host_bytes
from store_core.codec.properties import DELAY, REAL_QID, REAL_TOPIC
from store_core.codec.record import encode_blank, encode_record
from store_core.derive.dispatch import INNER_BASE, INNER_NUM, MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from store_core.layout import marks, paths, record, timer
from store_core.mend.salvage.survey import LostRecord, Neighbour, Region

_NO_HOST: Final = host_bytes("0.0.0.0:0")
_TIMER_OUT: Final = "TIMER_OUT_MS"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes to be written at an offset of the log: ``parts`` at positions inside the piece, zeros elsewhere."""

    phy_offset: int
    size_bytes: int
    parts: tuple[tuple[int, bytes], ...]
    store_timestamp_ms: int = 0
    tombstone_of: LostRecord | None = None
    is_blank: bool = False


@dataclass(slots=True)
class Fence:
    """How a region is closed. ``given_up``: a readable neighbour that had to go because nothing as small fits.

    ``skipped``: lost records that get no tombstone, for dead entries will stand in their queues. Without ``pieces`` the region
    is left as it is.
    """

    region: Region
    pieces: list[Piece] = field(default_factory=list)
    unplaced: list[LostRecord] = field(default_factory=list)
    skipped: list[LostRecord] = field(default_factory=list)
    given_up: LostRecord | None = None
    property_crc: bool = False  # records carry a property CRC

    @property
    def phy_offset(self) -> int:
        """Where the first piece begins; a widened region's lies in front of the region."""
        return self.pieces[0].phy_offset if self.pieces else self.region.phy_offset

    @property
    def end_phy_offset(self) -> int:
        """Where the last piece ends."""
        return self.pieces[-1].phy_offset + self.pieces[-1].size_bytes if self.pieces else self.region.end_phy_offset

    @property
    def min_record_size_bytes(self) -> int:
        """The least room for a record."""
        return record.MIN_RECORD_SIZE_BYTES + (record.PROPERTY_CRC.size_bytes if self.property_crc else 0)


@dataclass(frozen=True, slots=True)
class _Slot:
    start: int
    end: int
    lost: LostRecord | None = None  # None: free


def close_region(
    region: Region, known: Iterable[LostRecord], unplaced: Iterable[LostRecord] = (), *, property_crc: bool = False
) -> Fence:
    """Cover a region. ``known`` lost records have their place in it; ``unplaced`` ones are put where there is room.

    A region that no record fits into is widened: over the blank behind it, else over its smaller neighbour.
    ``property_crc``: the records that are made carry one.
    """
    fence = Fence(region, property_crc=property_crc)
    wide = _widened(region, fence)
    if wide.size_bytes < fence.min_record_size_bytes:  # its neighbour carries none either
        fence.property_crc = property_crc = False
    if fence.given_up is not None:
        known = [*known, fence.given_up]
    known, unplaced = list(known), list(unplaced)
    untold = [lost for lost in (*known, *unplaced) if not can_be_told(lost)]
    known, unplaced = [k for k in known if k not in untold], [u for u in unplaced if u not in untold]
    slots = _with_unplaced(_place(wide, known, fence), wide, unplaced, fence)
    fence.unplaced += untold
    timestamp = _timestamp(wide)
    for slot in slots:
        at_segment_end = wide.reaches_segment_end and slot.end == wide.end_phy_offset
        if slot.lost is not None:
            fence.pieces.append(_tombstone(slot, timestamp, property_crc=property_crc))
        elif at_segment_end:
            size = slot.end - slot.start
            fence.pieces.append(Piece(slot.start, size, ((0, encode_blank(size)),), timestamp, is_blank=True))
        else:
            fence.pieces += _fillers(slot.start, slot.end, timestamp, fence)
    return fence


def smallest_tombstone_size_bytes(lost: LostRecord, *, marked: bool = True, property_crc: bool = False) -> int:
    """The least room that a tombstone of a lost record needs, with or without its mark."""
    return len(_encode_tombstone(lost, 0, 0, 0, marked=marked, property_crc=property_crc))


def can_be_told(lost: LostRecord) -> bool:
    """Whether a record can say who it was; a damaged header, or a folder's name, may hold what fits no field."""
    try:
        smallest_tombstone_size_bytes(lost)
    except (ValueError, OverflowError, struct.error):
        return False
    return True


def _widened(region: Region, fence: Fence) -> Region:
    if region.reaches_segment_end:
        if region.size_bytes >= record.MIN_BLANK_SIZE_BYTES:
            return region
        neighbour = region.before
    elif region.size_bytes >= fence.min_record_size_bytes:
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
        fence.given_up = _given_up(neighbour)
    start = min(region.phy_offset, neighbour.phy_offset)
    end = max(region.end_phy_offset, neighbour.phy_offset + neighbour.size_bytes)
    return replace(region, phy_offset=start, end_phy_offset=end)


def _given_up(neighbour: Neighbour) -> LostRecord:
    return LostRecord(
        neighbour.topic, neighbour.queue_id, neighbour.queue_offset, neighbour.phy_offset, neighbour.size_bytes
    )


def _timestamp(region: Region) -> int:
    """Store time of the neighbours, never 0: a first record of time 0 keeps crash recovery from starting there."""
    for neighbour in (region.before, region.after):
        if neighbour is not None and neighbour.store_timestamp_ms > 0:
            return neighbour.store_timestamp_ms
    return 1


def _place(region: Region, known: Iterable[LostRecord], fence: Fence) -> list[_Slot]:
    """Slots over the whole region, the known records as near to their places as whole frames allow."""
    limit = region.end_phy_offset - (record.MIN_BLANK_SIZE_BYTES if region.reaches_segment_end else 0)
    slots: list[_Slot] = []
    cursor = region.phy_offset
    for lost in sorted(known, key=lambda k: k.phy_offset or 0):
        start, size = max(lost.phy_offset or cursor, cursor), lost.size_bytes
        if size > marks.MAX_FILLER_SIZE_BYTES:
            size = smallest_tombstone_size_bytes(lost, property_crc=fence.property_crc)
        if 0 < start - cursor < fence.min_record_size_bytes:
            start, size = cursor, size + start - cursor
        end = min(start + size, limit)
        if not region.reaches_segment_end and 0 < limit - end < fence.min_record_size_bytes:
            end = limit
        if end - start < smallest_tombstone_size_bytes(lost, marked=False, property_crc=fence.property_crc):
            fence.unplaced.append(lost)
            continue
        if start > cursor:
            slots.append(_Slot(cursor, start))
        slots.append(_Slot(start, end, lost))
        cursor = end
    if cursor < region.end_phy_offset:
        slots.append(_Slot(cursor, region.end_phy_offset))
    return slots


def _with_unplaced(slots: list[_Slot], region: Region, unplaced: Iterable[LostRecord], fence: Fence) -> list[_Slot]:
    """Records whose place nobody knows go into free slots that leave room for a frame, or nothing, behind them."""
    waiting, fence.unplaced = [*fence.unplaced, *unplaced], []
    for lost in waiting:
        need = smallest_tombstone_size_bytes(lost, property_crc=fence.property_crc)
        for place, slot in enumerate(slots):
            last = region.reaches_segment_end and slot.end == region.end_phy_offset
            spare = record.MIN_BLANK_SIZE_BYTES if last else fence.min_record_size_bytes
            room = slot.end - slot.start
            if slot.lost is None and (room >= need + spare or (room == need and not last)):
                rest = [_Slot(slot.start + need, slot.end)] if room > need else []
                slots[place : place + 1] = [_Slot(slot.start, slot.start + need, lost), *rest]
                break
        else:
            fence.unplaced.append(lost)
    return slots


def _tombstone_properties(lost: LostRecord, timestamp: int) -> dict[str, str]:
    properties = {marks.TOMBSTONE_PROPERTY: marks.TOMBSTONE_VALUE}
    if lost.light_queues:
        names, numbers = zip(*lost.light_queues, strict=True)
        properties |= {MULTI_DISPATCH: ",".join(names), MULTI_QUEUE_OFFSET: ",".join(map(str, numbers))}
    if lost.batch_size > 1:
        properties |= {INNER_BASE: str(lost.queue_offset), INNER_NUM: str(lost.batch_size)}
    # Schedule and timer services re-put what they read: without a real topic they would try for ever.
    if lost.topic == paths.SCHEDULE_TOPIC:
        properties |= {DELAY: str(lost.queue_id + 1)}
    if lost.topic == timer.TIMER_TOPIC:
        properties |= {_TIMER_OUT: str(timestamp)}
    if lost.topic in (paths.SCHEDULE_TOPIC, timer.TIMER_TOPIC):
        properties |= {REAL_TOPIC: marks.TOMBSTONE_TOPIC, REAL_QID: "0"}
    return properties


def _encode_tombstone(
    lost: LostRecord, at: int, body_length: int, timestamp: int, *, marked: bool, property_crc: bool
) -> bytes:
    return encode_record(
        topic=lost.topic,
        body=bytes(body_length),
        properties=_tombstone_properties(lost, timestamp) if marked else {},
        queue_id=lost.queue_id,
        queue_offset=lost.queue_offset,
        phy_offset=at,
        born_timestamp_ms=timestamp,
        born_host=_NO_HOST,
        store_timestamp_ms=timestamp,
        store_host=_NO_HOST,
        property_crc=property_crc,
    )


def _tombstone(slot: _Slot, timestamp: int, *, property_crc: bool) -> Piece:
    assert slot.lost is not None
    size = slot.end - slot.start
    least = len(_encode_tombstone(slot.lost, 0, 0, timestamp, marked=True, property_crc=property_crc))
    if marked := size >= least:
        body_length = size - least
    else:
        body_length = size - len(_encode_tombstone(slot.lost, 0, 0, timestamp, marked=False, property_crc=property_crc))
    data = _encode_tombstone(slot.lost, slot.start, body_length, timestamp, marked=marked, property_crc=property_crc)
    return Piece(slot.start, size, _without_body(data, body_length), timestamp, tombstone_of=slot.lost)


def _fillers(start: int, end: int, timestamp: int, fence: Fence) -> list[Piece]:
    pieces = []
    while start < end:
        size = end - start
        if size > marks.MAX_FILLER_SIZE_BYTES:
            size = marks.MAX_FILLER_SIZE_BYTES
            size -= max(fence.min_record_size_bytes - (end - start - size), 0)
        pieces.append(_filler(start, size, timestamp, fence))
        start += size
    return pieces


def _filler(start: int, size: int, timestamp: int, fence: Fence) -> Piece:
    topic = marks.FILLER_TOPIC
    if size < fence.min_record_size_bytes + len(topic):
        topic = ""
    body_length = size - fence.min_record_size_bytes - len(topic)
    data = encode_record(
        topic=topic,
        body=bytes(body_length),
        properties={},
        queue_id=0,
        queue_offset=0,
        phy_offset=start,
        born_timestamp_ms=timestamp,
        born_host=_NO_HOST,
        store_timestamp_ms=timestamp,
        store_host=_NO_HOST,
        sys_flag=record.TRANSACTION_ROLLBACK,
        property_crc=fence.property_crc,
    )
    return Piece(start, size, _without_body(data, body_length), timestamp)


def _without_body(data: bytes, body_length: int) -> tuple[tuple[int, bytes], ...]:
    """Head and end of a record whose body is zeros."""
    body_at = record.body_at(0)
    return ((0, data[:body_at]), (body_at + body_length, data[body_at + body_length :]))
