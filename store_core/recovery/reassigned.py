"""A sound record that says it is of one queue and number, as one of another: no body's checksum looks at its head."""

from __future__ import annotations

from collections.abc import Iterator

from store_core.codec.properties import TRAN_MSG
from store_core.codec.record import Message, RecordError, body_crc_ok, decode_record, property_crc_ok
from store_core.derive.queues import QueueBuilder
from store_core.layout import record
from store_core.read.records import read_record_bytes
from store_core.recovery.header_repair import Repair
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey

_IN_QUEUES = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)


def record_at(log: SegmentSequence, phy_offset: int) -> tuple[bytes, Message] | None:
    """The well-formed record at an offset, and its bytes."""
    data = read_record_bytes(log, phy_offset)
    message = decoded(data, phy_offset) if data is not None else None
    return (data, message) if data is not None and message is not None else None


def decoded(data: bytes, phy_offset: int) -> Message | None:
    """A record that fills some bytes; None where it is not well-formed."""
    try:
        return decode_record(data, 0, phy_offset)
    except RecordError:
        return None


def topic_at(message: Message) -> int:
    """Where in a record its topic stands."""
    return len(message.head) + len(message.body) + record.topic_length_layout(message.magic).size_bytes


def topic_length(message: Message) -> int:
    """Of its topic, in bytes as stored."""
    behind = record.PROPERTIES_LENGTH.size_bytes + len(message.raw_properties)
    return message.size_bytes - behind - topic_at(message)


def is_sound(data: bytes, message: Message) -> bool:
    """Whether its body is what it was, and no checksum vouches for what it says of its queue."""
    return body_crc_ok(message) and property_crc_ok(data) is not True


def is_queued(message: Message) -> bool:
    """Whether its transaction type gives it a queue entry."""
    return message.sys_flag & record.TRANSACTION_MASK in _IN_QUEUES


def reassigned(data: bytes, message: Message, key: QueueKey, number: int) -> Repair | None:
    """The record as that of a number, if it is another one now, there is room for the topic, and no checksum speaks against it."""
    phy_offset, sys_flag = message.phy_offset, message.sys_flag
    if not is_queued(message):  # of a half message, or one that was rolled back, there is no entry: one bit is wrong
        sys_flag &= ~record.TRANSACTION_PREPARED
        is_committed = sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_COMMIT
        if is_committed is not (TRAN_MSG in message.properties):
            return None
    told = {"queue_id": key.queue_id, "queue_offset": number, "sys_flag": sys_flag}
    if message.topic == key.topic and all(getattr(message, name) == value for name, value in told.items()):
        return None
    # What it says of its place is made good with all others, but where a checksum covers both.
    own_place = {"own_phy_offset": phy_offset}
    fields = (told,) if property_crc_ok(data) is None else (told, told | own_place)
    return next((repair for each in fields if (repair := _with_fields(data, message, key, each)) is not None), None)


def _with_fields(data: bytes, message: Message, key: QueueKey, told: dict[str, int]) -> Repair | None:
    """The record with other numbers and topic, if there is room for the topic, and no checksum speaks against it."""
    phy_offset, raw_topic, number = message.phy_offset, key.topic.encode(), told["queue_offset"]
    changed = {name: value for name, value in told.items() if getattr(message, name) != value}
    changes = [
        (record.HEAD.offset_of(name), record.HEAD.field_struct(name).pack(value)) for name, value in changed.items()
    ]
    names = [*changed]
    if message.topic != key.topic:
        names.append("topic")
        changes.append((topic_at(message), raw_topic))
    if len(raw_topic) != topic_length(message):
        return None
    fixed = bytearray(data)
    for at, new in changes:
        fixed[at : at + len(new)] = new
    if property_crc_ok(bytes(fixed)) is False:
        return None
    places = tuple((phy_offset + at, new) for at, new in changes)
    return Repair(key.topic, key.queue_id, number, phy_offset, len(data), tuple(names), places)


def open_numbers(builder: QueueBuilder, key: QueueKey) -> Iterator[int]:
    """Numbers of a queue, as built, without a message, with one that says another number, and those at both ends."""
    summary = builder.summary(key)
    yield from (one.placed_at for one in summary.misnumbered if one.placed_at is not None)
    for first, count in summary.gaps:
        yield from range(first, first + count)
    if summary.first_queue_offset:
        yield summary.first_queue_offset - 1
    yield summary.end_queue_offset


def differing(some: bytes, others: bytes) -> int:
    """In how many bytes two of a length differ."""
    return sum(a != b for a, b in zip(some, others, strict=True))
