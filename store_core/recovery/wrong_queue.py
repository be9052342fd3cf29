"""Find whole records whose topic, queue id or queue offset is wrong, and return them to their own queue.

No checksum covers these fields, so a broker believes them. The record's own queue then misses a queue offset. Two things prove where
the record belongs: the queue entry at the missing offset points to it, while the place it claims has no entry for it; or, without an
entry, a queue lacks one offset, and the record is the only message, or the only one out of order, of a queue whose name or id differs in
one byte. A topic is restored in place if it has the same length, and one byte of queue id or offset may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from store_core.codec.properties import TRAN_MSG
from store_core.codec.record import Message, RecordError, body_crc_ok, decode_record, property_crc_ok
from store_core.derive.numbering import Misnumbered
from store_core.derive.queues import QueueBuilder
from store_core.layout import marks, paths, record
from store_core.read.records import read_record_bytes
from store_core.recovery.damage_scan import Ranges
from store_core.recovery.header_repair import Repair, tags_fit
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.lost_record import LostRecord
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_IN_QUEUES: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)
_FEW: Final = 4  # messages of a queue that damage alone may have created
_MOST_NUMBERS: Final = 1 << 12  # of a queue or a gap, and gaps of a queue, that are checked
_MOST_LONELY: Final = 1 << 16  # more are not caused by damage
_TOPIC: Final = re.compile(paths.TOPIC_NAME)
_FARTHEST: Final = 16  # neighbouring numbers that are checked on each side


def record_at(log: SegmentSequence, phy_offset: int) -> tuple[bytes, Message] | None:
    """Return the bytes of the well-formed record at an offset, and the record; None without one."""
    data = read_record_bytes(log, phy_offset)
    message = decoded(data, phy_offset) if data is not None else None
    return (data, message) if data is not None and message is not None else None


def decoded(data: bytes, phy_offset: int) -> Message | None:
    """Return the record that fills ``data``; None if it is not well-formed."""
    try:
        return decode_record(data, 0, phy_offset)
    except RecordError:
        return None


def topic_at(message: Message) -> int:
    """Return the position of the topic in a record."""
    return len(message.head) + len(message.body) + record.topic_length_layout(message.magic).size_bytes


def topic_length(message: Message) -> int:
    """Return the stored length of a record's topic in bytes."""
    after_topic = record.PROPERTIES_LENGTH.size_bytes + len(message.raw_properties)
    return message.size_bytes - after_topic - topic_at(message)


def is_sound(data: bytes, message: Message) -> bool:
    """Return True if the body checksum holds and no property CRC proves the record's queue and number."""
    return body_crc_ok(message) and property_crc_ok(data) is not True


def is_queued(message: Message) -> bool:
    """Return True if the record's transaction type gives it a queue entry."""
    return message.sys_flag & record.TRANSACTION_MASK in _IN_QUEUES


def reassigned(data: bytes, message: Message, key: QueueKey, number: int) -> Repair | None:
    """Return the repair that gives a record another queue and number.

    None if the record has them already, if the topic has another length, or if a property CRC would fail afterwards.
    """
    phy_offset, sys_flag = message.phy_offset, message.sys_flag
    if not is_queued(message):  # half messages and rollbacks have no entry: one bit is wrong
        sys_flag &= ~record.TRANSACTION_PREPARED
        is_committed = sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_COMMIT
        if is_committed is not (TRAN_MSG in message.properties):
            return None
    wanted = {"queue_id": key.queue_id, "queue_offset": number, "sys_flag": sys_flag}
    if message.topic == key.topic and all(getattr(message, name) == value for name, value in wanted.items()):
        return None
    # The own offset is repaired with that of all others, unless a property CRC covers both.
    own_place = {"own_phy_offset": phy_offset}
    fields = (wanted,) if property_crc_ok(data) is None else (wanted, wanted | own_place)
    return next((repair for values in fields if (repair := _with_fields(data, message, key, values)) is not None), None)


def _with_fields(data: bytes, message: Message, key: QueueKey, values: dict[str, int]) -> Repair | None:
    """Return the record with other numbers and topic, unless the topic has another length or a property CRC would fail."""
    phy_offset, raw_topic, number = message.phy_offset, key.topic.encode(), values["queue_offset"]
    changed = {name: value for name, value in values.items() if getattr(message, name) != value}
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
    """Yield numbers of a built queue without a message or with a misnumbered one, and one beyond each end."""
    summary = builder.summary(key)
    yield from (item.placed_at for item in summary.misnumbered if item.placed_at is not None)
    for first, count in summary.gaps:
        yield from range(first, first + count)
    if summary.first_queue_offset:
        yield summary.first_queue_offset - 1
    yield summary.end_queue_offset


def differing(first: bytes, second: bytes) -> int:
    """Return in how many bytes two strings of the same length differ."""
    return sum(a != b for a, b in zip(first, second, strict=True))


class LonelyRecord:
    """Records to which no entry points, by number: those of queues with few messages, and strays of others.

    The caller passes every queue to ``add``.
    """

    def __init__(self, store: Store, log: SegmentSequence, builder: QueueBuilder) -> None:
        self._store, self._log, self._builder = store, log, builder
        self._keys: list[QueueKey] = []
        self._records: dict[int, list[tuple[QueueKey, int, bool]]] = {}  # the last value: it is a stray
        self._count = 0

    def add(self, key: QueueKey) -> None:
        """Remember a queue, and those of its records to which no entry points."""
        self._keys.append(key)
        messages = [(*message, False) for message in self._messages(key)] if self._count <= _MOST_LONELY else []
        strays = () if messages else self._builder.summary(key).strays
        for number, phy_offset, is_stray in (*messages, *((s.queue_offset, s.phy_offset, True) for s in strays)):
            entry = queue_entry_at(self._store, key, number)
            if entry is None or entry[0] != phy_offset:
                self._records.setdefault(number, []).append((key, phy_offset, is_stray))
                self._count += 1

    def repairs(self, closed: Ranges) -> Iterator[Repair]:
        """Yield repairs of records with a number and place that exactly one other queue of nearly the same name lacks.

        ``closed`` are damaged regions of the log: a number that may have been lost there proves little.
        """
        found: dict[int, list[Repair]] = {}
        for key in self._keys if 0 < self._count <= _MOST_LONELY else ():
            is_large = self._builder.summary(key).messages > _FEW
            for gap in self._gaps(key):
                is_sure = is_large and gap.is_known and not closed.overlap(gap.before, gap.after)
                for number in range(gap.first, min(gap.end, gap.first + _MOST_NUMBERS)):
                    for other, phy_offset, is_stray in self._records.get(number, ()):
                        if other == key or not gap.before < phy_offset < gap.after:
                            continue
                        is_wanted = is_sure or (not is_stray and self._cannot_be(other, key, is_large=is_large))
                        if is_wanted and (repair := _as_one_of(self._log, key, number, phy_offset)) is not None:
                            found.setdefault(phy_offset, []).append(repair)
        yield from (repairs[0] for repairs in found.values() if len(repairs) == 1)

    def _messages(self, key: QueueKey) -> Iterator[tuple[int, int]]:
        """Yield number and offset of a queue's messages if there are few."""
        summary = self._builder.summary(key)
        number = summary.first_queue_offset
        for first, count in (*summary.gaps, (summary.end_queue_offset, 0)) if summary.messages <= _FEW else ():
            for present in range(number, first):
                yield present, self._place(key, present)
            number = first + count

    def _gaps(self, key: QueueKey) -> Iterator[_Gap]:
        """Yield the ranges that a queue lacks between its messages, and one number beyond each end."""
        summary = self._builder.summary(key)
        first, end = summary.first_queue_offset, summary.end_queue_offset
        for missing, count in islice(summary.gaps, _MOST_NUMBERS):
            stop = missing + count
            yield _Gap(missing, stop, self._place(key, missing - 1), self._place(key, stop), is_known=True)
        if first:
            yield _Gap(first - 1, first, -1, self._place(key, first), is_known=self._log.min_phy_offset == 0)
        yield _Gap(end, end + 1, self._place(key, end - 1), self._log.max_phy_offset, is_known=False)

    def _place(self, key: QueueKey, number: int) -> int:
        phy_offset = self._builder.phy_offset_of(key, number)
        return -1 if phy_offset is None else phy_offset

    def _cannot_be(self, lonely: QueueKey, other: QueueKey, *, is_large: bool) -> bool:
        """Return True if a queue lacks what every queue has.

        * Its topic is no valid name; or
        * ``other`` is large, and the queue lacks the messages before its first, or has no file while ``other`` has one.
        """
        if _TOPIC.fullmatch(lonely.topic) is None:
            return True
        is_begun = self._log.min_phy_offset > 0 or not self._builder.summary(lonely).first_queue_offset
        queues = self._store.queues
        return is_large and (not is_begun or (lonely not in queues and other in queues))


class _Gap(NamedTuple):
    """Numbers [first, end) that a queue lacks, whose records lay between two offsets of the log.

    ``is_known``: these numbers existed, because the queue has messages on both sides, or its first messages were in this log.
    """

    first: int
    end: int
    before: int
    after: int
    is_known: bool


def _as_one_of(log: SegmentSequence, key: QueueKey, number: int, phy_offset: int) -> Repair | None:
    """Return the record of another queue as one of ``key`` if one byte of topic or queue id differs."""
    found = record_at(log, phy_offset)
    if found is None or not is_sound(*found):
        return None
    data, message = found
    own = record.HEAD.field_struct("own_phy_offset").pack
    if differing(own(message.own_phy_offset), own(phy_offset)) > 1:
        return None  # nothing proves that the record is at its own place
    topic, queue_id = topic_at(message), record.HEAD.field_struct("queue_id").pack
    current = queue_id(message.queue_id) + data[topic : topic + topic_length(message)]
    wanted = queue_id(key.queue_id) + key.topic.encode()
    if len(current) != len(wanted) or differing(current, wanted) != 1:
        return None
    return reassigned(data, message, key, number)


def misplaced(
    store: Store, log: SegmentSequence, builder: QueueBuilder, closed: Ranges, restored: Ranges
) -> list[Repair]:
    """Return repairs of records that belong to a number which the queue built from ``log`` lacks.

    Records in ``closed`` regions, and bytes that were ``restored``, stay. If no entry proves a record's place, a record with an
    impossible number gets the one for which its neighbours in the log leave room, and a record of an impossible queue goes to
    another one. A repair may prove others, so the caller repeats the call with queues built from the repaired log.
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
        odd += ((key, item) for item in islice(builder.summary(key).misnumbered, _MOST_NUMBERS))
        lonely.add(key)
    found = free(_as_placed(store, log, key, item) for key, item in odd)
    repaired_at = {repair.phy_offset for repair in found}
    return [*found, *(repair for repair in free(lonely.repairs(closed)) if repair.phy_offset not in repaired_at)]


def is_free(repair: Repair, closed: Ranges, restored: Ranges) -> bool:
    """Return True if a record lies in no closed region and none of its changed bytes was restored."""
    is_closed = closed.overlap(repair.phy_offset, repair.phy_offset + repair.size_bytes)
    return not (is_closed or any(restored.overlap(at, at + len(new)) for at, new in repair.changes))


def _free(closed: Ranges, restored: Ranges, repairs: Iterable[Repair | None]) -> list[Repair]:
    return [repair for repair in repairs if repair is not None and is_free(repair, closed, restored)]


def _as_placed(store: Store, log: SegmentSequence, key: QueueKey, misnumbered: Misnumbered) -> Repair | None:
    found = record_at(log, misnumbered.phy_offset)
    if found is None or misnumbered.placed_at is None or not is_sound(*found):
        return None
    data, message = found
    if (message.topic, *_place(message)) != (*key, misnumbered.queue_offset) or _is_where_it_says(store, message):
        return None
    entry = _entry(store, key, misnumbered.placed_at)
    if entry is not None and entry.phy_offset not in (None, misnumbered.phy_offset) and _leads_to_a_record(log, entry):
        return None
    return reassigned(data, message, key, misnumbered.placed_at)


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
    """Return the queue entry at a number if it can be the entry of a record."""
    phy_offset, size_bytes, tags_code = queue_entry_at(store, key, number) or (0, 0, 0)
    if not record.MIN_RECORD_SIZE_BYTES <= size_bytes <= record.MAX_RECORD_SIZE_BYTES or phy_offset < 0:
        return None
    return LostRecord(key.topic, key.queue_id, number, phy_offset, size_bytes, tags_code=tags_code)


def _is_whole(message: Message, data: bytes, entry: LostRecord) -> bool:
    """Return True if the rest of the record matches its entry and no property CRC proves its queue and number."""
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
    """Return True if the neighbouring numbers have entries for records that name them, at lower and higher offsets.

    One neighbour is enough at a queue's end. Tombstones, and records that are out of place as well, prove nothing: the next
    number is checked instead."""
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
    """Return True if a record may belong to the number that it names.

    * The entry at that number points to it; or
    * that entry points to no other record of the number, and the built queue has the record between its neighbours.
    """
    if _is_where_it_says(store, message):
        return True
    key, number = QueueKey(message.topic, message.queue_id), message.queue_offset
    entry = _entry(store, key, number)
    if entry is not None and entry.phy_offset is not None:
        other = decoded(log.read(entry.phy_offset, entry.size_bytes), entry.phy_offset)
        if other is not None and (other.topic, *_place(other)) == (*key, number):
            return False
    before, at, after = (builder.phy_offset_of(key, number + step) for step in (-1, 0, 1))
    return at == message.phy_offset and before is not None and after is not None and before < at < after


def _is_where_it_says(store: Store, message: Message) -> bool:
    entry = _entry(store, QueueKey(message.topic, message.queue_id), message.queue_offset)
    return entry is not None and entry.phy_offset == message.phy_offset
