"""Records that are whole but for their queue id or number: their queue's own entry and its neighbours tell what these were.

Every checksum of such a record holds, for no body's checksum looks at its head, so brokers take it for what it says; its queue
misses a number. That number's entry points to it, though, while the place that it claims has no entry for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from store_core.codec.record import Message, RecordError, body_crc_ok, decode_record, property_crc_ok
from store_core.derive.queues import QueueBuilder
from store_core.layout import paths, record
from store_core.layout.queue import ENTRY
from store_core.mend.salvage.repair import Repair, tags_fit
from store_core.mend.salvage.survey import LostRecord
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_MOST_NUMBERS: Final = 1 << 12  # of a queue that are looked at
_IN_QUEUES: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)


def misplaced(store: Store, log: SegmentSequence, builder: QueueBuilder) -> list[Repair]:
    """Records of ``log`` that belong to a number which no record of the queue built from it has."""
    return [
        repair
        for key in builder.queue_keys()
        if key in store.queues and not key.topic.startswith(paths.LMQ_PREFIX)
        for number in islice(_open_numbers(builder, key), _MOST_NUMBERS)
        if (repair := _of_number(store, log, key, number)) is not None
    ]


def _open_numbers(builder: QueueBuilder, key: QueueKey) -> Iterator[int]:
    """Numbers without a message, with one that says another number, and those at both ends."""
    summary = builder.summary(key)
    yield from (one.placed_at for one in summary.misnumbered if one.placed_at is not None)
    for first, count in summary.gaps:
        yield from range(first, first + count)
    if summary.first_queue_offset:
        yield summary.first_queue_offset - 1
    yield summary.end_queue_offset


def _of_number(store: Store, log: SegmentSequence, key: QueueKey, number: int) -> Repair | None:
    entry = _entry(store, key, number)
    if entry is None or entry.phy_offset is None:
        return None
    data = log.read(entry.phy_offset, entry.size_bytes)
    message = _decoded(data, entry.phy_offset)
    if message is None or not _is_whole(message, data, entry) or _place(message) == (key.queue_id, number):
        return None
    claimed = _entry(store, QueueKey(key.topic, message.queue_id), message.queue_offset)
    if claimed is not None and claimed.phy_offset == entry.phy_offset:
        return None
    if not _is_between_neighbours(store, log, key, number, entry.phy_offset):
        return None
    fields = {"queue_id": key.queue_id, "queue_offset": number}
    names = tuple(name for name, value in fields.items() if getattr(message, name) != value)
    changes = tuple(
        (entry.phy_offset + record.HEAD.offset_of(name), record.HEAD.field_struct(name).pack(fields[name]))
        for name in names
    )
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


def _is_whole(message: Message, data: bytes, entry: LostRecord) -> bool:
    """Whether all else of the record is what its entry says, and no checksum vouches for what it says of its place."""
    return (
        message.size_bytes == entry.size_bytes == len(data)
        and message.own_phy_offset == entry.phy_offset
        and message.topic == entry.topic
        and bool(message.body)
        and body_crc_ok(message)
        and property_crc_ok(data) is not True
        and message.sys_flag & record.TRANSACTION_MASK in _IN_QUEUES
        and tags_fit(message, entry)
    )


def _place(message: Message) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


def _is_between_neighbours(store: Store, log: SegmentSequence, key: QueueKey, number: int, phy_offset: int) -> bool:
    """Whether the numbers beside it have entries for records that say so themselves, in front of it and behind; one will do
    at a queue's end."""
    agreeing = 0
    for other in (number - 1, number + 1):
        entry = _entry(store, key, other)
        if entry is None or entry.phy_offset is None or log.find(entry.phy_offset) is None:
            continue
        message = _decoded(log.read(entry.phy_offset, entry.size_bytes), entry.phy_offset)
        if message is None or (message.topic, *_place(message)) != (key.topic, key.queue_id, other):
            return False
        if (entry.phy_offset < phy_offset) is not (other < number):
            return False
        agreeing += 1
    return agreeing > 0
