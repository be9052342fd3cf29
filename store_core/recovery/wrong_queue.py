"""Records that are whole but for their topic, queue id or number: their queue's own entry and its neighbours tell what these were.

Every checksum of such a record holds, for no body's checksum looks at its head, so brokers take it for what it says; its queue
misses a number. That number's entry points to it, though, while the place that it claims has no entry for it. A topic is put right
where it is as long as the queue's, and the record tells the queue's id and number; one byte of these may differ if no queue has the
topic that it tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Final

from store_core.codec.record import Message
from store_core.derive.numbering import Misnumbered
from store_core.derive.queues import QueueBuilder
from store_core.layout import marks, paths, record
from store_core.recovery.header_repair import Repair, tags_fit
from store_core.recovery.lonely_records import LonelyRecord
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.offset_ranges import Ranges
from store_core.recovery.reassigned import (
    decoded,
    differing,
    is_queued,
    is_sound,
    open_numbers,
    reassigned,
    record_at,
)
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_MOST_NUMBERS: Final = 1 << 12  # of a queue that are looked at
_FARTHEST: Final = 16  # of the numbers beside one that are asked


def misplaced(
    store: Store, log: SegmentSequence, builder: QueueBuilder, closed: Ranges, restored: Ranges
) -> list[Repair]:
    """Records of ``log`` that belong to a number which no record of the queue built from it has.

    Those apart that lie in holes of the log, which are ``closed``, or were ``restored``. Where entries tell of none, those whose
    number cannot be get the one at which their neighbours in the log leave them room, and those of a queue that cannot be go to
    another one. What is put back may vouch for more: ask again, of the queues built from the log that follows.
    """
    keys = [key for key in builder.queue_keys() if not key.topic.startswith(paths.LMQ_PREFIX)]
    by_entries = (
        _of_number(store, log, builder, key, number)
        for key in keys
        if key in store.queues
        for number in islice(open_numbers(builder, key), _MOST_NUMBERS)
    )
    free = partial(_free, closed, restored)
    if found := free(by_entries):
        return found
    lonely, odd = LonelyRecord(store, log, builder), list[tuple[QueueKey, Misnumbered]]()
    for key in keys:
        odd += ((key, one) for one in islice(builder.summary(key).misnumbered, _MOST_NUMBERS))
        lonely.add(key)
    found = free(_as_placed(store, log, key, one) for key, one in odd)
    told = {repair.phy_offset for repair in found}
    return [*found, *(repair for repair in free(lonely.repairs(closed)) if repair.phy_offset not in told)]


def is_free(repair: Repair, closed: Ranges, restored: Ranges) -> bool:
    """Whether a record lies in no hole, and what changes of it was not restored."""
    is_closed = closed.overlap(repair.phy_offset, repair.phy_offset + repair.size_bytes)
    return not (is_closed or any(restored.overlap(at, at + len(new)) for at, new in repair.changes))


def _free(closed: Ranges, restored: Ranges, repairs: Iterable[Repair | None]) -> list[Repair]:
    return [repair for repair in repairs if repair is not None and is_free(repair, closed, restored)]


def _as_placed(store: Store, log: SegmentSequence, key: QueueKey, one: Misnumbered) -> Repair | None:
    found = record_at(log, one.phy_offset)
    if found is None or one.placed_at is None or not is_sound(*found):
        return None
    data, message = found
    if (message.topic, *_place(message)) != (*key, one.queue_offset) or _is_where_it_says(store, message):
        return None
    entry = _entry(store, key, one.placed_at)
    if entry is not None and entry.phy_offset not in (None, one.phy_offset) and _leads_to_a_record(log, entry):
        return None
    return reassigned(data, message, key, one.placed_at)


def _leads_to_a_record(log: SegmentSequence, entry: LostRecord) -> bool:
    found = record_at(log, entry.phy_offset) if entry.phy_offset is not None else None
    return found is not None and found[1].size_bytes == entry.size_bytes


def _of_number(store: Store, log: SegmentSequence, builder: QueueBuilder, key: QueueKey, number: int) -> Repair | None:
    entry = _entry(store, key, number)
    if entry is None or entry.phy_offset is None:
        return None
    data = log.read(entry.phy_offset, entry.size_bytes)
    message = decoded(data, entry.phy_offset)
    if message is None or not _is_whole(message, data, entry):
        return None
    if message.topic != key.topic:
        is_known = any(message.topic == other.topic for other in store.queues)
        odd_bytes = differing(_packed_place(*_place(message)), _packed_place(key.queue_id, number))
        if odd_bytes > (0 if is_known else 1):
            return None
    repair = reassigned(data, message, key, number)
    if repair is None or (is_queued(message) and _may_be_at_home(store, log, builder, message)):
        return None
    return repair if _is_between_neighbours(store, log, builder, key, number, entry.phy_offset) else None


def _entry(store: Store, key: QueueKey, number: int) -> LostRecord | None:
    """What stands at a number of a queue, if it can be the entry of a record."""
    phy_offset, size_bytes, tags_code = queue_entry_at(store, key, number) or (0, 0, 0)
    if not record.MIN_RECORD_SIZE_BYTES <= size_bytes <= record.MAX_RECORD_SIZE_BYTES or phy_offset < 0:
        return None
    return LostRecord(key.topic, key.queue_id, number, phy_offset, size_bytes, tags_code=tags_code)


def _is_whole(message: Message, data: bytes, entry: LostRecord) -> bool:
    """Whether all else of the record is what its entry says, and no checksum vouches for what it says of its queue."""
    return (
        message.size_bytes == entry.size_bytes == len(data)
        and bool(message.body)
        and is_sound(data, message)
        and tags_fit(message, entry)
    )


def _place(message: Message) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


def _packed_place(queue_id: int, queue_offset: int) -> bytes:
    pack = record.HEAD.field_struct
    return pack("queue_id").pack(queue_id) + pack("queue_offset").pack(queue_offset)


def _is_between_neighbours(
    store: Store, log: SegmentSequence, builder: QueueBuilder, key: QueueKey, number: int, phy_offset: int
) -> bool:
    """Whether the numbers beside it have entries for records that say so themselves, in front of it and behind; one will do
    at a queue's end. Tombstones, and records that are out of place as well, have no say: those behind them are asked."""
    agreeing = 0
    for step in (-1, 1):
        for other in range(number + step, number + step * (_FARTHEST + 1), step):
            entry = _entry(store, key, other)
            if entry is None or entry.phy_offset is None or log.find(entry.phy_offset) is None:
                break
            message = decoded(log.read(entry.phy_offset, entry.size_bytes), entry.phy_offset)
            if message is None or (entry.phy_offset < phy_offset) is not (other < number):
                return False
            if marks.TOMBSTONE_PROPERTY in message.properties:
                continue
            if (message.topic, *_place(message)) == (*key, other):
                agreeing += 1
                break
            if _may_be_at_home(store, log, builder, message):
                return False
    return agreeing > 0


def _may_be_at_home(store: Store, log: SegmentSequence, builder: QueueBuilder, message: Message) -> bool:
    """Whether the number that a record tells has an entry for it, or its queue, built from the log, others on both sides of it
    and no other one there, with an entry."""
    if _is_where_it_says(store, message):
        return True
    key, number = QueueKey(message.topic, message.queue_id), message.queue_offset
    entry = _entry(store, key, number)
    if entry is not None and entry.phy_offset is not None:
        other = decoded(log.read(entry.phy_offset, entry.size_bytes), entry.phy_offset)
        if other is not None and (other.topic, *_place(other)) == (*key, number):
            return False
    before, at, behind = (builder.phy_offset_of(key, number + step) for step in (-1, 0, 1))
    return at == message.phy_offset and before is not None and behind is not None and before < at < behind


def _is_where_it_says(store: Store, message: Message) -> bool:
    entry = _entry(store, QueueKey(message.topic, message.queue_id), message.queue_offset)
    return entry is not None and entry.phy_offset == message.phy_offset
