"""Records that were written over others: they say that they lie elsewhere, and do, or their queue's entry says that they did.

A write that went to a wrong place leaves such records, inside the log, whole. Where they came to lie is a hole, and a record
that is not to be had where it belongs goes back there. One whose own place alone is damaged is none of these: its entry leads to it.
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

_MOST_PUT_BACK_BYTES: Final = 4 << 20  # which a plan holds; what is more stays where it is, and can be read there


@dataclass(slots=True)
class Misdirected:
    """``zeros`` go over what is not where it belongs; ``put_back`` are records for their own places, ``repairs`` what is said of them."""

    zeros: dict[int, Patch] = field(default_factory=dict)
    put_back: dict[int, Patch] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)


class _Stray(NamedTuple):
    phy_offset: int
    home: int
    size_bytes: int
    is_copy: bool  # it lies at home as well


def misdirected(store: Store, survey: LogSurvey) -> Misdirected:
    """Which good records of the store's log lie over others. Its own files are not changed by what is found."""
    strays = [stray for at in survey.wrong_own_offsets if (stray := _stray(store, at)) is not None]
    while True:  # one whose own place is another one's stays where it is, and may be in the way of others
        going = Ranges((stray.phy_offset, stray.phy_offset + stray.size_bytes) for stray in strays)
        left = [s for s in strays if s.is_copy or _is_free(survey.regions, going, s.home, s.home + s.size_bytes)]
        if len(left) == len(strays):
            break
        strays = left
    found, begin, end = Misdirected(), 0, 0
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
        begin = begin if at == end else at
        end = at + size
        found.zeros[begin] = Patch(0, end - begin)  # with those right in front of it
    return found


def _stray(store: Store, phy_offset: int) -> _Stray | None:
    """What a record that says it lies elsewhere is, unless nothing else tells of that place."""
    message = read_message(store.log, phy_offset)
    if message is None or message.own_phy_offset < 0:
        return None
    home, size, points_to = message.own_phy_offset, message.size_bytes, _points_to(store, message)
    if points_to == phy_offset:
        return None
    is_copy = store.log.read(home, size) == store.log.read(phy_offset, size)
    return _Stray(phy_offset, home, size, is_copy) if is_copy or points_to == home else None


def _points_to(store: Store, message: Message) -> int | None:
    """Where the entry at a record's number leads."""
    entry = queue_entry_at(store, QueueKey(message.topic, message.queue_id), message.queue_offset)
    return entry[0] if entry is not None and entry[1] == message.size_bytes else None


def _is_free(regions: list[Region], going: Ranges, start: int, end: int) -> bool:
    """Whether nothing else that can be read, and stays, lies in [start, end); ``regions`` are in log order."""
    before = bisect_right(regions, start, key=attrgetter("phy_offset")) - 1
    is_lost = before >= 0 and end <= regions[before].end_phy_offset
    return is_lost or not any(going.outside(start, end))
