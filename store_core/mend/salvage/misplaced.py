"""Records that are whole but for their topic, queue id or number: their queue's own entry and its neighbours tell what these were.

Every checksum of such a record holds, for no body's checksum looks at its head, so brokers take it for what it says; its queue
misses a number. That number's entry points to it, though, while the place that it claims has no entry for it. A topic is put right
where it is as long as the queue's, no queue has it, and the record tells the queue's id and number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from store_core.codec.record import Message, RecordError, body_crc_ok, decode_record, property_crc_ok
from store_core.derive.numbering import Misnumbered
from store_core.derive.queues import QueueBuilder
from store_core.layout import marks, paths, record
from store_core.layout.queue import ENTRY
from store_core.mend.salvage.lost_record import LostRecord
from store_core.mend.salvage.repair import Repair, tags_fit
from store_core.read.records import read_record_bytes
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_MOST_NUMBERS: Final = 1 << 12  # of a queue that are looked at
_FARTHEST: Final = 16  # of the numbers beside one that are asked
_IN_QUEUES: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)


def misplaced(
    store: Store, log: SegmentSequence, builder: QueueBuilder, is_taken: Callable[[Repair], bool] = lambda _: False
) -> list[Repair]:
    """Records of ``log`` that belong to a number which no record of the queue built from it has, those apart that are taken.

    Where entries tell of none, those whose number cannot be get the one at which their neighbours in the log leave them room. What
    is put back may vouch for more: ask again, of the queues built from the log that follows.
    """
    keys = [key for key in builder.queue_keys() if not key.topic.startswith(paths.LMQ_PREFIX)]
    by_entries = (
        _of_number(store, log, builder, key, number)
        for key in keys
        if key in store.queues
        for number in islice(_open_numbers(builder, key), _MOST_NUMBERS)
    )
    if found := [repair for repair in by_entries if repair is not None and not is_taken(repair)]:
        return found
    left = (
        _as_placed(store, log, key, one)
        for key in keys
        for one in islice(builder.summary(key).misnumbered, _MOST_NUMBERS)
    )
    return [repair for repair in left if repair is not None and not is_taken(repair)]


def _as_placed(store: Store, log: SegmentSequence, key: QueueKey, one: Misnumbered) -> Repair | None:
    data = read_record_bytes(log, one.phy_offset)
    message = _decoded(data, one.phy_offset) if data is not None else None
    if data is None or message is None or one.placed_at is None or not _is_sound(message, data):
        return None
    if (message.topic, *_place(message)) != (*key, one.queue_offset) or _is_where_it_says(store, message):
        return None
    entry = _entry(store, key, one.placed_at)
    if entry is not None and entry.phy_offset != one.phy_offset:
        return None
    name = "queue_offset"
    change = one.phy_offset + record.HEAD.offset_of(name), record.HEAD.field_struct(name).pack(one.placed_at)
    return Repair(*key, one.placed_at, one.phy_offset, len(data), (name,), (change,))


def _open_numbers(builder: QueueBuilder, key: QueueKey) -> Iterator[int]:
    """Numbers without a message, with one that says another number, and those at both ends."""
    summary = builder.summary(key)
    yield from (one.placed_at for one in summary.misnumbered if one.placed_at is not None)
    for first, count in summary.gaps:
        yield from range(first, first + count)
    if summary.first_queue_offset:
        yield summary.first_queue_offset - 1
    yield summary.end_queue_offset


def _of_number(store: Store, log: SegmentSequence, builder: QueueBuilder, key: QueueKey, number: int) -> Repair | None:
    entry = _entry(store, key, number)
    if entry is None or entry.phy_offset is None:
        return None
    data = log.read(entry.phy_offset, entry.size_bytes)
    message = _decoded(data, entry.phy_offset)
    if message is None or not _is_whole(message, data, entry):
        return None
    fields = {"queue_id": key.queue_id, "queue_offset": number}
    names = tuple(name for name, value in fields.items() if getattr(message, name) != value)
    changes = tuple(
        (entry.phy_offset + record.HEAD.offset_of(name), record.HEAD.field_struct(name).pack(fields[name]))
        for name in names
    )
    if message.topic != key.topic:
        raw_topic = key.topic.encode()
        if (
            names
            or len(raw_topic) != _topic_length(message)
            or any(message.topic == other.topic for other in store.queues)
        ):
            return None
        names, changes = ("topic",), ((entry.phy_offset + _topic_at(message), raw_topic),)
    if not names or _may_be_at_home(store, log, builder, message):
        return None
    if not _is_between_neighbours(store, log, builder, key, number, entry.phy_offset):
        return None
    fixed = bytearray(data)
    for at, new in changes:
        fixed[at - entry.phy_offset : at - entry.phy_offset + len(new)] = new
    if property_crc_ok(bytes(fixed)) is False:
        return None
    return Repair(key.topic, key.queue_id, number, entry.phy_offset, len(data), names, changes)


def _entry(store: Store, key: QueueKey, number: int) -> LostRecord | None:
    """What stands at a number of a queue, if it can be the entry of a record."""
    files = store.queues.get(key)
    data = files.read(number * ENTRY.size_bytes, ENTRY.size_bytes) if files is not None and number >= 0 else b""
    if len(data) < ENTRY.size_bytes:
        return None
    found = ENTRY.read(data)
    fits = record.MIN_RECORD_SIZE_BYTES <= found["size_bytes"] <= record.MAX_RECORD_SIZE_BYTES
    if not fits or found["phy_offset"] < 0:
        return None
    return LostRecord(
        key.topic, key.queue_id, number, found["phy_offset"], found["size_bytes"], tags_code=found["tags_code"]
    )


def _decoded(data: bytes, phy_offset: int) -> Message | None:
    try:
        return decode_record(data, 0, phy_offset)
    except RecordError:
        return None


def _topic_at(message: Message) -> int:
    return len(message.head) + len(message.body) + record.topic_length_layout(message.magic).size_bytes


def _topic_length(message: Message) -> int:
    """In bytes, as stored."""
    behind = record.PROPERTIES_LENGTH.size_bytes + len(message.raw_properties)
    return message.size_bytes - behind - _topic_at(message)


def _is_whole(message: Message, data: bytes, entry: LostRecord) -> bool:
    """Whether all else of the record is what its entry says, and no checksum vouches for what it says of its queue."""
    return (
        message.size_bytes == entry.size_bytes == len(data)
        and message.own_phy_offset == entry.phy_offset
        and bool(message.body)
        and _is_sound(message, data)
        and message.sys_flag & record.TRANSACTION_MASK in _IN_QUEUES
        and tags_fit(message, entry)
    )


def _is_sound(message: Message, data: bytes) -> bool:
    """Whether its body is what it was, and no checksum vouches for what it says of its queue."""
    return body_crc_ok(message) and property_crc_ok(data) is not True


def _place(message: Message) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


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
            message = _decoded(log.read(entry.phy_offset, entry.size_bytes), entry.phy_offset)
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
        other = _decoded(log.read(entry.phy_offset, entry.size_bytes), entry.phy_offset)
        if other is not None and (other.topic, *_place(other)) == (*key, number):
            return False
    before, at, behind = (builder.phy_offset_of(key, number + step) for step in (-1, 0, 1))
    return at == message.phy_offset and before is not None and behind is not None and before < at < behind


def _is_where_it_says(store: Store, message: Message) -> bool:
    entry = _entry(store, QueueKey(message.topic, message.queue_id), message.queue_offset)
    return entry is not None and entry.phy_offset == message.phy_offset
