"""Records that were written over others: they say that they lie elsewhere, and do, or their queue's entry says that they did.

A write that went to a wrong place leaves such records, inside the log, whole. Where they came to lie is a hole, and a record
that is not to be had where it belongs goes back there. One whose own place alone is damaged is none of these: its entry leads to it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Final

from store_core.codec.record import Message
from store_core.mend.salvage.evidence import standing_entry
from store_core.mend.salvage.repair import Repair
from store_core.mend.salvage.survey import LogSurvey, Region
from store_core.read.records import read_message
from store_core.storage.overlay import Patch
from store_core.storage.store import QueueKey, Store

_MOST_LOOKED_AT: Final = 1 << 16
_MOST_PUT_BACK: Final = 1 << 12


@dataclass(slots=True)
class Misdirected:
    """``zeros`` go over what is not where it belongs; ``put_back`` are records for their own places, ``repairs`` what is said of them."""

    zeros: dict[int, Patch] = field(default_factory=dict)
    put_back: dict[int, Patch] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)


def misdirected(store: Store, survey: LogSurvey) -> Misdirected:
    """Which good records of the store's log lie over others. Its own files are not changed by what is found."""
    found = Misdirected()
    for at in islice(survey.wrong_own_offsets, _MOST_LOOKED_AT):
        message = read_message(store.log, at)
        home = message.own_phy_offset if message is not None else -1
        if message is None or home < 0:
            continue
        points_to = _points_to(store, message)
        data = store.log.read(at, message.size_bytes)
        if points_to == at:
            continue
        if store.log.read(home, message.size_bytes) != data:
            if points_to != home:
                continue  # nothing else tells of another place
            if len(found.repairs) < _MOST_PUT_BACK and _is_lost(survey.regions, home, message.size_bytes):
                found.put_back[home] = Patch(0, len(data), ((0, data),))
                key = message.topic, message.queue_id, message.queue_offset
                found.repairs.append(Repair(*key, home, len(data), ("phy_offset",), ((home, data),)))
        found.zeros[at] = Patch(0, message.size_bytes)
    return found


def _points_to(store: Store, message: Message) -> int | None:
    """Where the entry at a record's number leads."""
    entry = standing_entry(store, QueueKey(message.topic, message.queue_id), message.queue_offset)
    return entry[0] if entry is not None and entry[1] == message.size_bytes else None


def _is_lost(regions: list[Region], phy_offset: int, size_bytes: int) -> bool:
    """Whether nothing can be read there; ``regions`` are in log order."""
    before = bisect_right(regions, phy_offset, key=attrgetter("phy_offset")) - 1
    return before >= 0 and phy_offset + size_bytes <= regions[before].end_phy_offset
