"""Find whole records of batch queues whose queue id, number or count is wrong and repair them.

A flipped bit or an overwritten field in the head (tests/recovery/test_misplaced_batches.py) or in the properties
(test_repaired_numbers.py) causes this. The numbers of a batch queue are consecutive, and its entries name them. A batch stores
its number twice, in its head and in its properties, where brokers look for it; its body proves the count, too.

One wrong number is worse here than elsewhere: decreasing numbers look like a topic that was created again, and the
queue would be built without the messages before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from store_core.codec.properties import INNER_BASE, INNER_NUM, java_number, last_value
from store_core.codec.record import Message, property_crc_ok
from store_core.derive.dispatch import Rows, inner_batch_size
from store_core.derive.spool import RowsByQueue
from store_core.layout.queue import BATCH_ENTRY
from store_core.layout.record import FLAG_INNER_BATCH
from store_core.recovery.header_repair import Repair, items_in, with_number
from store_core.recovery.wrong_queue import decoded, is_sound, reassigned, record_at
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_MOST_LOOKED_AT: Final = 1 << 12  # records or entries of a queue
_ENTRIES_AT_ONCE: Final = 1 << 14


class _Odd(NamedTuple):
    """A record whose number does not continue its queue. ``expected``: the number that joins on both sides, if there is one.

    ``before``: offset of the record before it in the queue, whose count may be wrong; -1 without one. The queue's end is
    an item with ``phy_offset`` -1.
    """

    phy_offset: int
    size_bytes: int
    queue_offset: int
    batch_size: int
    expected: int | None
    before: int


def wrong_batches(store: Store, log: SegmentSequence, rows: RowsByQueue, keys: Iterable[QueueKey]) -> Iterator[Repair]:
    """Yield repairs of records in the batch queues ``keys``, and of unknown queues that belong to a batch queue."""
    done = set()
    for repair in (*_by_numbers(store, log, rows, keys), *_by_entries(store, log, rows)):
        if repair.phy_offset not in done:
            done.add(repair.phy_offset)
            yield repair


def _by_numbers(store: Store, log: SegmentSequence, rows: RowsByQueue, keys: Iterable[QueueKey]) -> Iterator[Repair]:
    for key in keys:
        is_known = key in store.batch_queues or not store.batch_queues
        odd_ones = list(islice(_odd_ones(rows.rows(key), are_all=not is_known), _MOST_LOOKED_AT))
        elsewhere = [odd for odd in odd_ones if odd.phy_offset >= 0]
        places = _places_of(store, key.topic, elsewhere) if elsewhere else {}
        for odd in odd_ones:
            if odd.before >= 0 and (repair := _recounted(log, odd)) is not None:
                yield repair
                continue
            place = places.get(odd.phy_offset)
            if place is None and odd.expected is not None:
                place = key.queue_id, odd.expected
            if place is not None and (repair := _repaired(log, key.topic, odd, place)) is not None:
                yield repair


def _by_entries(store: Store, log: SegmentSequence, rows: RowsByQueue) -> Iterator[Repair]:
    for key, files in store.batch_queues.items():
        for entry in islice(_unmatched_entries(files, rows.rows(key)), _MOST_LOOKED_AT):
            if (repair := _of_entry(store, log, key, entry)) is not None:
                yield repair


def _unmatched_entries(files: SegmentSequence, chunks: Iterable[Rows]) -> Iterator[Any]:
    """Yield entries of a queue that join the entry before and point to records which the built queue lacks."""
    built, held, before = iter(chunks), np.zeros(0, np.int64), 0
    for entries in _entries(files):
        ends = entries["queue_offset"].astype(np.int64) + entries["batch_size"]
        joins = (entries["queue_offset"] == np.r_[before, ends[:-1]]) & (entries["size_bytes"] > 0)
        before, highest = int(ends[-1]), int(entries["phy_offset"][joins].max(initial=-1))
        while (not len(held) or held[-1] < highest) and (chunk := next(built, None)) is not None:
            held = np.r_[held, chunk["phy_offset"]]
        yield from entries[joins & ~np.isin(entries["phy_offset"], held)]
        held = held[held > highest]


def _of_entry(store: Store, log: SegmentSequence, key: QueueKey, entry: Any) -> Repair | None:
    """Return the record at an entry as one of ``key``, if it names an unknown queue and the entry's number."""
    found = record_at(log, int(entry["phy_offset"]))
    if found is None or found[1].size_bytes != entry["size_bytes"] or not found[1].body or not is_sound(*found):
        return None
    data, message = found
    own = QueueKey(message.topic, message.queue_id)
    number = message.queue_offset, inner_batch_size(message.properties)
    if own in store.queues or own in store.batch_queues or number != (entry["queue_offset"], entry["batch_size"]):
        return None
    return reassigned(data, message, key, message.queue_offset)


def _odd_ones(chunks: Iterable[Rows], *, are_all: bool) -> Iterator[_Odd]:
    """Yield rows that do not join; all rows if ``are_all``, because the queue they name is unknown."""
    held: Any = None  # the last two rows: only the next row shows if the second joins
    for rows in chunks:
        both = rows if held is None else np.concatenate([held, rows])
        yield from _odd_in(both, is_first=held is None, is_last=False, are_all=are_all)
        held = both[-2:].copy()
    if held is not None:
        yield from _odd_in(held, is_first=len(held) == 1, is_last=True, are_all=are_all)
        yield _Odd(-1, 0, -1, 0, None, int(held["phy_offset"][-1]))


def _odd_in(rows: Any, *, is_first: bool, is_last: bool, are_all: bool) -> Iterator[_Odd]:
    """Yield rows that do not join, except the first and the last, which belong to the calls before and after."""
    number, count = rows["queue_offset"], rows["batch_size"].astype(np.int64)
    ends = number + count
    joins = np.r_[True, number[1:] == ends[:-1]]
    if is_first and len(rows) > 1:
        joins[0] = joins[1]
    for at in np.flatnonzero(~joins | are_all).tolist():
        if (at == len(rows) - 1 and not is_last) or (at == 0 and not is_first):
            continue
        expected = None
        if 0 < at < len(rows) - 1 and number[at + 1] == ends[at - 1] + count[at]:
            expected = int(ends[at - 1])
        before = int(rows["phy_offset"][at - 1]) if at else -1
        place = int(rows["phy_offset"][at]), int(rows["size_bytes"][at])
        yield _Odd(*place, int(number[at]), int(count[at]), expected, before)


def _places_of(store: Store, topic: str, odd_ones: list[_Odd]) -> dict[int, tuple[int, int]]:
    """Return by record offset the queue id and number of an entry that points there and joins the entry before."""
    by_place = {odd.phy_offset: odd for odd in odd_ones}
    wanted = np.array(list(by_place), np.int64)
    found: dict[int, tuple[int, int]] = {}
    for key, files in store.batch_queues.items():
        if key.topic != topic:
            continue
        before = 0
        for entries in _entries(files):
            ends = entries["queue_offset"].astype(np.int64) + entries["batch_size"]
            joins = entries["queue_offset"] == np.r_[before, ends[:-1]]
            for entry in entries[joins & np.isin(entries["phy_offset"], wanted)]:
                odd = by_place[int(entry["phy_offset"])]
                if (entry["size_bytes"], entry["batch_size"]) == (odd.size_bytes, odd.batch_size):
                    found.setdefault(odd.phy_offset, (key.queue_id, int(entry["queue_offset"])))
            before = int(ends[-1])
    return found


def _entries(files: SegmentSequence) -> Iterator[Any]:
    step = _ENTRIES_AT_ONCE * BATCH_ENTRY.size_bytes
    for segment in files.segments:
        for at in range(segment.phy_offset, segment.end_phy_offset, step):
            data = files.read(at, min(step, segment.end_phy_offset - at))
            if len(data) >= BATCH_ENTRY.size_bytes:
                yield np.frombuffer(data, BATCH_ENTRY.dtype, len(data) // BATCH_ENTRY.size_bytes)


def _repaired(log: SegmentSequence, topic: str, odd: _Odd, place: tuple[int, int]) -> Repair | None:
    """Return the record with another queue id and number, unless a property CRC proves the present ones."""
    data = log.read(odd.phy_offset, odd.size_bytes)
    message = decoded(data, odd.phy_offset)
    if message is None or not _is_whole(message, topic, odd) or not is_sound(data, message):
        return None
    repair = reassigned(data, message, QueueKey(topic, place[0]), place[1])
    base = last_value(message.raw_properties, INNER_BASE)
    if base is None or java_number(base[1], 64) == place[1]:
        return repair
    return _with_properties(data, message, {INNER_BASE: place[1]}, place, repair)


def _recounted(log: SegmentSequence, odd: _Odd) -> Repair | None:
    """Return the record before an odd one with the count that its body has, if both join then."""
    found = record_at(log, odd.before)
    if found is None or not is_sound(*found):
        return None
    data, message = found
    count = items_in(message)
    if count is None or (odd.phy_offset >= 0 and message.queue_offset + count != odd.queue_offset):
        return None
    numbers = {INNER_BASE: message.queue_offset, INNER_NUM: count}
    return _with_properties(data, message, numbers, (message.queue_id, message.queue_offset), None)


def _with_properties(
    data: bytes, message: Message, numbers: dict[bytes, int], place: tuple[int, int], repair: Repair | None
) -> Repair | None:
    """Add the numbers in a batch's properties to ``repair``; None if a property CRC would fail afterwards."""
    properties = message.raw_properties
    for name, number in numbers.items() if message.sys_flag & FLAG_INNER_BATCH else ():
        stored = last_value(properties, name)
        if stored is None or java_number(stored[1], 64) != number:
            properties = with_number(properties, name, number)
    if properties == message.raw_properties:
        return repair
    at = len(data) - len(properties)
    names, changes = ((), ()) if repair is None else (repair.fields, repair.changes)
    changes = (*changes, (message.phy_offset + at, properties))
    fixed = bytearray(data)
    for start, new in changes:
        fixed[start - message.phy_offset : start - message.phy_offset + len(new)] = new
    if property_crc_ok(bytes(fixed)) is False:
        return None
    return Repair(message.topic, *place, message.phy_offset, len(data), (*names, "properties"), changes)


def _is_whole(message: Message, topic: str, odd: _Odd) -> bool:
    return (
        message.topic == topic
        and (message.own_phy_offset, message.size_bytes) == (odd.phy_offset, odd.size_bytes)
        and bool(message.body)
    )
