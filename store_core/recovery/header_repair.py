"""Find records whose head is damaged and repair them if other data proves every byte that changes.

The damage is a flipped bit or an overwritten range of a few bytes in a head (tests/recovery/test_repair.py), or in a number
among the properties (test_repaired_numbers.py). Proofs of a value:

* size, queue id, queue offset and own offset: the queue entry that points to the record; the own offset also by itself
* magic: the form with which the parts of the record fit
* each of the three lengths: the size, the topic and the two other lengths
* body checksum: a property CRC over the whole record
* level of a delayed message: its queue id
* first queue offset and count of an inner batch: its own queue offset, and the entry or the body

The repaired record must be well-formed to the byte, its body checksum and property CRC must hold, its tags must have the
entry's code, and its store time must lie between its neighbours'. Nothing proves flags, times and hosts: damage on both sides
of them is repaired only if a property CRC holds afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from store_core.codec.batch import split_inner_batch
from store_core.codec.compression import BodyError, decompress
from store_core.codec.properties import (
    DELAY,
    INNER_BASE,
    INNER_NUM,
    TAGS,
    has_bad_batch,
    has_bad_level,
    java_number,
    last_value,
)
from store_core.codec.record import (
    Message,
    RecordError,
    body_crc,
    body_crc_ok,
    decode_record,
    property_crc_ok,
)
from store_core.codec.tags import tags_code
from store_core.layout import paths, record
from store_core.layout.queue import is_ext_address
from store_core.recovery.damage_scan import Region
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import Lost, from_queue_entries
from store_core.scan.log import Progress
from store_core.storage.sequence import SegmentSequence

_IN_QUEUES: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)
_PROPERTY_SEPARATOR: Final = bytes([record.PROPERTY_SEPARATOR])
_NAME_VALUE_SEPARATOR: Final = bytes([record.NAME_VALUE_SEPARATOR])
_REPLACEMENT: Final = "\ufffd"  # replaces bytes that are no UTF-8
_MOST_PLACES: Final = 16  # places where a body of unknown length may end


@dataclass(frozen=True, slots=True)
class Repair:
    """A repaired record. ``fields`` were wrong; ``changes`` are (``phy_offset``, new bytes)."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    size_bytes: int
    fields: tuple[str, ...]
    changes: tuple[tuple[int, bytes], ...]

    def in_full(self, log: SegmentSequence) -> Repair:
        """Return this repair with all bytes of the record as one change, for a ``log`` that differs from its files."""
        data = bytearray(log.read(self.phy_offset, self.size_bytes))
        for at, new in self.changes:
            data[at - self.phy_offset : at - self.phy_offset + len(new)] = new
        return replace(self, changes=((self.phy_offset, bytes(data)),))

    def as_json(self) -> dict[str, Any]:
        """Return a member of ``repaired`` in the command's document."""
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "phy_offset": self.phy_offset,
            "size_bytes": self.size_bytes,
            "fields": list(self.fields),
        }


def repairs_in(
    log: SegmentSequence,
    region: Region,
    known: Iterable[Lost],
    *,
    is_tail: bool = False,
    on_progress: Progress | None = None,
) -> list[Repair]:
    """Return the records of a region that can be repaired.

    Without an entry only a record directly after a good or a repaired one is tried, and none after the log's end.

    Args:
        known: the records that queue entries place in the region; rows with a sound head need no repair.
        is_tail: the region lies after the log's last good record.
        on_progress: receives how many bytes of the region have been searched.
    """
    found: list[Repair] = []
    entries = (lost for lost in from_queue_entries(known) if not lost.topic.startswith(paths.LMQ_PREFIX))
    entry = next(entries, None)
    at = region.phy_offset
    while at < region.end_phy_offset:
        while entry is not None and (entry.phy_offset or 0) < at:
            entry = next(entries, None)
        place = entry.phy_offset if entry is not None else None
        repair: Repair | None = None
        if entry is not None and place == at:
            repair = _with_entry(log, region, entry)
            entry = next(entries, None)
            place = entry.phy_offset if entry is not None else None
        elif not is_tail:
            repair = _without_entry(log, region, at, place)
        if repair is not None:
            found.append(repair)
            at += repair.size_bytes
        else:
            at = place if place is not None else region.end_phy_offset
        if on_progress is not None:
            on_progress(at - region.phy_offset)
    return found


def _with_entry(log: SegmentSequence, region: Region, entry: LostRecord) -> Repair | None:
    at = entry.phy_offset
    assert at is not None  # every entry has it
    data = log.read(at, entry.size_bytes)
    if len(data) < entry.size_bytes or not data.strip(b"\0") or not _may_name(data, entry.topic):
        return None
    fields = {
        "size_bytes": entry.size_bytes,
        "queue_id": entry.queue_id,
        "queue_offset": entry.queue_offset,
        "own_phy_offset": at,
    }
    candidates = []
    for magic in (record.MAGIC_V1, record.MAGIC_V2):
        fixed = _with_fields(data, {**fields, "magic": magic})
        completed = (_with_numbers(variant, at, entry) for variant in _lengths_tried(fixed, entry.topic.encode()))
        candidates += [variant for variant in completed if _is_proven(variant, at, region, entry)]
    return _the_one(at, data, candidates)


def _may_name(data: bytes, topic: str) -> bool:
    """Return True if the bytes contain the topic, which no repair changes, or if its exact bytes are unknown."""
    return _REPLACEMENT in topic or topic.encode() in data


def _without_entry(log: SegmentSequence, region: Region, at: int, following: int | None) -> Repair | None:
    """Return the repair of a record whose own offset is right and that the region's end or another record follows.

    ``following``: the next place to which a queue entry points.
    """
    head = log.read(at, record.body_at(record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6))
    own = record.HEAD.offset_of("own_phy_offset")
    width = record.HEAD.field("own_phy_offset").size_bytes
    if head[own : own + width] != record.HEAD.field_struct("own_phy_offset").pack(at):
        return None
    candidates, data = [], b""
    for magic in (record.MAGIC_V1, record.MAGIC_V2):
        size = _size_by_parts(log, at, region.end_phy_offset, magic)
        end = at + size
        if not size or not (end == region.end_phy_offset or end == following or _says_its_place(log, end)):
            continue
        data = log.read(at, size)
        fixed = _with_numbers(_with_fields(data, {"size_bytes": size, "magic": magic}), at, None)
        if _is_proven(fixed, at, region, None):
            candidates.append(fixed)
            break
    return _the_one(at, data, candidates)


def _size_by_parts(log: SegmentSequence, at: int, end: int, magic: int) -> int:
    """Return the record size by its stored lengths; 0 if the parts do not fit before ``end``."""
    head = log.read(at, record.body_at(record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6))
    if len(head) < record.MIN_RECORD_SIZE_BYTES:
        return 0
    (sys_flag,) = record.HEAD.field_struct("sys_flag").unpack_from(head, record.HEAD.offset_of("sys_flag"))
    body_at = record.body_at(sys_flag)
    (body_length,) = record.MIDDLE.field_struct("body_length").unpack_from(head, _body_length_at(sys_flag))
    topic_length = record.topic_length_layout(magic)
    place = at + body_at + max(body_length, 0)
    if body_length <= 0 or place >= end:
        return 0
    (topic,) = topic_length.struct.unpack(
        log.read(place, topic_length.size_bytes).ljust(topic_length.size_bytes, b"\0")
    )
    place += topic_length.size_bytes + topic
    if not 0 < topic < end - place:
        return 0
    width = record.PROPERTIES_LENGTH.size_bytes
    (properties,) = record.PROPERTIES_LENGTH.struct.unpack(log.read(place, width).ljust(width, b"\0"))
    size = place + width + max(properties, 0) - at
    return size if size <= min(end - at, record.MAX_RECORD_SIZE_BYTES) else 0


def _body_length_at(sys_flag: int) -> int:
    return record.middle_at(sys_flag) + record.MIDDLE.offset_of("body_length")


def _says_its_place(log: SegmentSequence, at: int) -> bool:
    width = record.HEAD.field("own_phy_offset").size_bytes
    stored = log.read(at + record.HEAD.offset_of("own_phy_offset"), width)
    return stored == record.HEAD.field_struct("own_phy_offset").pack(at)


def _with_fields(data: bytes, fields: dict[str, int]) -> bytes:
    fixed = bytearray(data)
    for name, value in fields.items():
        record.HEAD.field_struct(name).pack_into(fixed, record.HEAD.offset_of(name), value)
    return bytes(fixed)


def _lengths_tried(data: bytes, topic: bytes) -> Iterator[bytes]:
    """Yield the record as it is, then with each length or the body checksum set to its implied value."""
    yield data
    (sys_flag,) = record.HEAD.field_struct("sys_flag").unpack_from(data, record.HEAD.offset_of("sys_flag"))
    magic: int = record.PREFIX.struct.unpack_from(data)[1]
    body_at, topic_length = record.body_at(sys_flag), record.topic_length_layout(magic)
    length = topic_length.struct.pack(len(topic)) if len(topic) < 1 << 8 * topic_length.size_bytes - 1 else b""
    if body_at > len(data) or not length:
        return
    body_length = record.MIDDLE.field_struct("body_length")
    (stored_length,) = body_length.unpack_from(data, _body_length_at(sys_flag))
    for end in _body_ends(data, body_at, length + topic):
        fixed = bytearray(data)
        body_length.pack_into(fixed, _body_length_at(sys_flag), end - body_at)
        yield bytes(fixed)
    end = body_at + max(stored_length, 0)
    topic_end = end + topic_length.size_bytes + len(topic)
    rest = len(data) - topic_end - record.PROPERTIES_LENGTH.size_bytes
    if data[end + topic_length.size_bytes : topic_end] == topic and 0 <= rest <= record.MAX_PROPERTIES_SIZE_BYTES:
        yield data[:end] + length + data[end + topic_length.size_bytes :]
        yield (
            data[:topic_end]
            + record.PROPERTIES_LENGTH.struct.pack(rest)
            + data[topic_end + record.PROPERTIES_LENGTH.size_bytes :]
        )
    if 0 < stored_length <= len(data) - body_at:
        yield _with_fields(data, {"body_crc": body_crc(data[body_at:end])})


def _body_ends(data: bytes, body_at: int, topic: bytes) -> Iterator[int]:
    """Yield the positions where a body may end: topic with its length, then properties that fill the record, follow."""
    at, count = body_at - 1, 0
    while count < _MOST_PLACES and (at := data.find(topic, at + 1)) >= 0:
        count += 1
        properties_at = at + len(topic) + record.PROPERTIES_LENGTH.size_bytes
        if (
            properties_at <= len(data)
            and record.PROPERTIES_LENGTH.struct.pack(min(len(data) - properties_at, record.MAX_PROPERTIES_SIZE_BYTES))
            == data[properties_at - record.PROPERTIES_LENGTH.size_bytes : properties_at]
        ):
            yield at


def _with_numbers(data: bytes, at: int, entry: LostRecord | None) -> bytes:
    """Return the record with the numbers in its properties corrected at which a broker's check fails."""
    try:
        message = decode_record(data, 0, at)
    except RecordError:
        return data
    properties = message.raw_properties
    if has_bad_level(message.topic.encode(), properties):
        properties = with_number(properties, DELAY.encode(), message.queue_id + 1)
    if has_bad_batch(properties):
        batch_size = items_in(message)
        entry_batch_size = entry.batch_size if entry is not None else 0
        numbers = (
            (INNER_BASE, 64, message.queue_offset),
            (INNER_NUM, 16, entry_batch_size if batch_size is None else batch_size),
        )
        for name, bits, number in numbers:
            found = last_value(properties, name)
            if found is not None and java_number(found[1], bits) is None:
                properties = with_number(properties, name, number)
    return data[: len(data) - len(properties)] + properties


def items_in(message: Message) -> int | None:
    """Return how many messages a record's body holds; None if the body cannot be split."""
    if not message.sys_flag & record.FLAG_INNER_BATCH:
        return 1
    try:
        return len(split_inner_batch(decompress(message.body, message.sys_flag)))
    except BodyError:
        return None


def with_number(properties: bytes, name: bytes, number: int) -> bytes:
    """Return a property string of the same length with ``number`` as the value of ``name``.

    It is unchanged if there is no such property, or no room.

    If the value continues after the number, or contains another property, the separator between them was damaged. Text after
    the value that is no property is a part of it that damage cut off.
    """
    text = str(number).encode()
    properties, (at, value) = _with_name(properties, name)
    if at < 0 or number < 0:
        return properties
    end = at + len(value)
    while end - at < len(text) and end < len(properties):
        following = properties[end + 1 :].partition(_PROPERTY_SEPARATOR)[0]
        if record.NAME_VALUE_SEPARATOR in following:
            break
        end += 1 + len(following)
    value = properties[at:end]
    if len(text) > len(value):
        return properties
    continues = value.startswith(text) or record.NAME_VALUE_SEPARATOR in value
    if continues and len(text) < len(value):
        new = text + _PROPERTY_SEPARATOR + value[len(text) + 1 :]
    else:
        new = text.rjust(len(value), b"0")
    return properties[:at] + new + properties[end:]


def _with_name(properties: bytes, name: bytes) -> tuple[bytes, tuple[int, bytes]]:
    """Return a property string with that name, and the position and bytes of its value.

    The value may be empty. One wrong byte in the name or the separator after it is corrected. The position is -1 if there is
    no such property.
    """
    if (found := last_value(properties, name)) is not None:
        return properties, found
    at, start = 0, name + _NAME_VALUE_SEPARATOR
    for segment in properties.split(_PROPERTY_SEPARATOR):
        value_at = at + len(start)
        if len(segment) >= len(start) and sum(a != b for a, b in zip(segment, start, strict=False)) <= 1:
            return properties[:at] + start + properties[value_at:], (value_at, segment[len(start) :])
        at += len(segment) + 1
    return properties, (-1, b"")


def _is_proven(data: bytes, at: int, region: Region, entry: LostRecord | None) -> bool:
    """Return True if a record passes every check."""
    try:
        message = decode_record(data, 0, at)
    except RecordError:
        return False
    if has_bad_level(message.topic.encode(), message.raw_properties) or has_bad_batch(message.raw_properties):
        return False
    if not (body_crc_ok(message) and (message.body or message.body_crc == 0) and property_crc_ok(data) is not False):
        return False
    if not _is_between(message, region):
        return False
    if entry is None:
        return bool(message.body) and bool(message.topic) and message.topic.isprintable()
    return (
        message.topic == entry.topic
        and message.sys_flag & record.TRANSACTION_MASK in _IN_QUEUES
        and tags_fit(message, entry)
    )


def _is_between(message: Message, region: Region) -> bool:
    """Return True if the store time lies between those of the region's neighbours: they never decrease in a log."""
    before = region.before.store_timestamp_ms if region.before is not None else 1
    after = region.after.store_timestamp_ms if region.after is not None else message.store_timestamp_ms
    return before <= message.store_timestamp_ms <= after


def tags_fit(message: Message, entry: LostRecord) -> bool:
    code = entry.tags_code
    if code is None or is_ext_address(code) or entry.topic == paths.SCHEDULE_TOPIC:
        return True
    return tags_code(message.properties.get(TAGS)) == code


def _the_one(at: int, data: bytes, candidates: list[bytes]) -> Repair | None:
    """Return the repair if all candidates agree and no unproven field lies between the first and the last changed byte."""
    if len(set(candidates)) != 1 or candidates[0] == data:
        return None
    fixed = candidates[0]
    message = decode_record(fixed, 0, at)
    changed = [n for n, (old, new) in enumerate(zip(data, fixed, strict=True)) if old != new]
    names = {_field_at(message.sys_flag, n, message) for n in changed}
    has_property_crc = property_crc_ok(fixed) is True
    if not has_property_crc and (
        "body_crc" in names or _is_unproven_between(message.sys_flag, changed[0], changed[-1])
    ):
        return None
    changes = tuple((at + low, fixed[low:high]) for low, high in _runs(changed))
    return Repair(
        message.topic,
        message.queue_id,
        message.queue_offset,
        at,
        len(fixed),
        tuple(name for name in _NAMES if name in names),
        changes,
    )


_NAMES: Final = (*record.HEAD.names, "body_length", "topic_length", "properties_length", "properties")


def _field_at(sys_flag: int, at: int, message: Message) -> str:
    """Return the name of the field that the byte at position ``at`` of a repaired record belongs to."""
    for field in record.HEAD.fields:
        start = record.HEAD.offset_of(field.name)
        if start <= at < start + field.size_bytes:
            return field.name
    body_at = record.body_at(sys_flag)
    if at < body_at:
        return "body_length"
    topic_length = record.topic_length_layout(message.magic).size_bytes
    if at < body_at + len(message.body) + topic_length:
        return "topic_length"
    return "properties_length" if at < message.size_bytes - len(message.raw_properties) else "properties"


def _is_unproven_between(sys_flag: int, first: int, last: int) -> bool:
    flag_at, sys_flag_at = record.HEAD.offset_of("flag"), record.HEAD.offset_of("sys_flag")
    flag_end = flag_at + record.HEAD.field("flag").size_bytes
    unproven = ((flag_at, flag_end), (sys_flag_at, _body_length_at(sys_flag)))
    return any(first < low and high <= last for low, high in unproven)


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    start = places[0]
    for place, following in zip(places, [*places[1:], -1], strict=True):
        if following != place + 1:
            yield start, place + 1
            start = following
