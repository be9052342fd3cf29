"""Find records that were written over others and move them back to their own offset.

A misdirected write leaves such records, whole, inside the log (tests/recovery/test_misdirected.py). Their own offset names
another place, and they are at that place as well, or their queue's entry points there. The range they cover becomes a hole; a
record that is missing at its own place returns to it. If only the own offset is damaged, the entry points to the record,
and it stays.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from store_core.codec.record import Message, decode_record
from store_core.read.records import read_message
from store_core.recovery.damage_scan import LogSurvey, Region
from store_core.recovery.header_repair import Repair
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.offset_ranges import Ranges
from store_core.storage.overlay import Patch
from store_core.storage.store import QueueKey, Store

_MOST_PUT_BACK_BYTES: Final = 4 << 20  # a plan holds these bytes; further records stay where they can be read


@dataclass(slots=True)
class Misdirected:
    """Edits by log offset: ``zeros`` over misdirected records, ``put_back`` with records for their own places.

    ``repairs`` describe the records that are put back.
    """

    zeros: dict[int, Patch] = field(default_factory=dict)
    put_back: dict[int, Patch] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)


class _Stray(NamedTuple):
    phy_offset: int
    home: int
    size_bytes: int
    is_copy: bool  # the same bytes are at ``home``


def misdirected(store: Store, survey: LogSurvey) -> Misdirected:
    """Return the edits that move misdirected records of the store's log; no file is changed."""
    strays = [stray for at in survey.wrong_own_offsets if (stray := _stray(store, at)) is not None]
    while True:  # a record whose own place is taken stays, and may be in the way of others
        moving = Ranges((stray.phy_offset, stray.phy_offset + stray.size_bytes) for stray in strays)
        movable = [s for s in strays if s.is_copy or _is_free(survey.regions, moving, s.home, s.home + s.size_bytes)]
        if len(movable) == len(strays):
            break
        strays = movable
    found, start, end = Misdirected(), 0, 0
    room = _MOST_PUT_BACK_BYTES
    for at, home, size, is_copy in strays:
        if not is_copy and home not in found.put_back:
            if (room := room - size) < 0:
                continue
            data = store.log.read(at, size)
            found.put_back[home] = Patch(0, size, ((0, data),))
            message = decode_record(data, 0, at)
            key = message.topic, message.queue_id, message.queue_offset
            found.repairs.append(Repair(*key, home, size, ("phy_offset",), ((home, data),)))
        start = start if at == end else at
        end = at + size
        found.zeros[start] = Patch(0, end - start)  # one patch for records that follow each other
    return found


def _stray(store: Store, phy_offset: int) -> _Stray | None:
    """Return the record at an offset as a stray, unless nothing else proves the place that it names."""
    message = read_message(store.log, phy_offset)
    if message is None or message.own_phy_offset < 0:
        return None
    home, size, points_to = message.own_phy_offset, message.size_bytes, _points_to(store, message)
    if points_to == phy_offset:
        return None
    is_copy = store.log.read(home, size) == store.log.read(phy_offset, size)
    return _Stray(phy_offset, home, size, is_copy) if is_copy or points_to == home else None


def _points_to(store: Store, message: Message) -> int | None:
    """Return the offset in the queue entry at a record's number; None if the size differs."""
    entry = queue_entry_at(store, QueueKey(message.topic, message.queue_id), message.queue_offset)
    return entry[0] if entry is not None and entry[1] == message.size_bytes else None


def _is_free(regions: list[Region], moving: Ranges, start: int, end: int) -> bool:
    """Return True if no readable bytes that stay lie in [start, end); ``regions`` are in log order."""
    before = bisect_right(regions, start, key=attrgetter("phy_offset")) - 1
    is_lost = before >= 0 and end <= regions[before].end_phy_offset
    return is_lost or not any(moving.outside(start, end))
