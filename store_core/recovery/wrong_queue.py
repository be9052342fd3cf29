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
from store_core.recovery.header_repair import Repair, tags_fit
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.offset_ranges import Ranges
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_IN_QUEUES: Final = (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)
_FEW: Final = 4  # messages of a queue that damage alone may have made
_MOST_NUMBERS: Final = 1 << 12  # of a queue or a gap, and gaps of a queue, that are looked at
_MOST_LONELY: Final = 1 << 16  # more are no damage
_TOPIC: Final = re.compile(paths.TOPIC_NAME)
_FARTHEST: Final = 16  # of the numbers beside one that are asked


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


class LonelyRecord:
    """Records of queues with few messages, and strays of others, by their numbers, to which no entry leads; ``add`` is told of every
    queue."""

    def __init__(self, store: Store, log: SegmentSequence, builder: QueueBuilder) -> None:
        self._store, self._log, self._builder = store, log, builder
        self._keys: list[QueueKey] = []
        self._records: dict[int, list[tuple[QueueKey, int, bool]]] = {}  # whether it is a stray
        self._count = 0

    def add(self, key: QueueKey) -> None:
        """Look at a queue, and remember that there is such."""
        self._keys.append(key)
        few = [(*each, False) for each in self._few(key)] if self._count <= _MOST_LONELY else []
        strays = () if few else self._builder.summary(key).strays
        for number, phy_offset, is_stray in (*few, *((s.queue_offset, s.phy_offset, True) for s in strays)):
            entry = queue_entry_at(self._store, key, number)
            if entry is None or entry[0] != phy_offset:
                self._records.setdefault(number, []).append((key, phy_offset, is_stray))
                self._count += 1

    def repairs(self, closed: Ranges) -> Iterator[Repair]:
        """Those that have a number, and lie in its place, which one other queue of nearly the same name lacks.

        ``closed`` are holes of the log: a number that may have been lost there is no sure sign.
        """
        found: dict[int, list[Repair]] = {}
        for key in self._keys if 0 < self._count <= _MOST_LONELY else ():
            is_large = self._builder.summary(key).messages > _FEW
            for gap in self._gaps(key):
                is_sure = is_large and gap.is_known and not closed.overlap(gap.before, gap.behind)
                for number in range(gap.first, min(gap.end, gap.first + _MOST_NUMBERS)):
                    for other, phy_offset, is_stray in self._records.get(number, ()):
                        if other == key or not gap.before < phy_offset < gap.behind:
                            continue
                        is_wanted = is_sure or (not is_stray and self._cannot_be(other, key, is_large=is_large))
                        if is_wanted and (repair := _as_one_of(self._log, key, number, phy_offset)) is not None:
                            found.setdefault(phy_offset, []).append(repair)
        yield from (repairs[0] for repairs in found.values() if len(repairs) == 1)

    def _few(self, key: QueueKey) -> Iterator[tuple[int, int]]:
        """Numbers and places of a queue's messages, if they are few."""
        summary = self._builder.summary(key)
        number = summary.first_queue_offset
        for first, count in (*summary.gaps, (summary.end_queue_offset, 0)) if summary.messages <= _FEW else ():
            for each in range(number, first):
                yield each, self._place(key, each)
            number = first + count

    def _gaps(self, key: QueueKey) -> Iterator[_Gap]:
        """What a queue lacks between its messages, and one number at each end."""
        summary = self._builder.summary(key)
        first, end = summary.first_queue_offset, summary.end_queue_offset
        for missing, count in islice(summary.gaps, _MOST_NUMBERS):
            behind = missing + count
            yield _Gap(missing, behind, self._place(key, missing - 1), self._place(key, behind), is_known=True)
        if first:
            yield _Gap(first - 1, first, -1, self._place(key, first), is_known=self._log.min_phy_offset == 0)
        yield _Gap(end, end + 1, self._place(key, end - 1), self._log.max_phy_offset, is_known=False)

    def _place(self, key: QueueKey, number: int) -> int:
        phy_offset = self._builder.phy_offset_of(key, number)
        return -1 if phy_offset is None else phy_offset

    def _cannot_be(self, lonely: QueueKey, other: QueueKey, *, is_large: bool) -> bool:
        """Whether a queue lacks what it had to have: a topic's name, or, beside a large one, the messages before its first, or any
        entry, while ``other`` has some."""
        if _TOPIC.fullmatch(lonely.topic) is None:
            return True
        is_begun = self._log.min_phy_offset > 0 or not self._builder.summary(lonely).first_queue_offset
        queues = self._store.queues
        return is_large and (not is_begun or (lonely not in queues and other in queues))


class _Gap(NamedTuple):
    """Numbers [first, end) that a queue lacks, whose records lay between two offsets of the log.

    ``is_known``: there were such, for the queue has messages on both sides, or began in this log.
    """

    first: int
    end: int
    before: int
    behind: int
    is_known: bool


def _as_one_of(log: SegmentSequence, key: QueueKey, number: int, phy_offset: int) -> Repair | None:
    """The record of another queue as one of ``key``, if one byte of its topic or its queue id is all that differs."""
    found = record_at(log, phy_offset)
    if found is None or not is_sound(*found):
        return None
    data, message = found
    own = record.HEAD.field_struct("own_phy_offset").pack
    if differing(own(message.own_phy_offset), own(phy_offset)) > 1:
        return None  # nothing tells that it is here where it belongs
    topic, queue_id = topic_at(message), record.HEAD.field_struct("queue_id").pack
    told = queue_id(message.queue_id) + data[topic : topic + topic_length(message)]
    wanted = queue_id(key.queue_id) + key.topic.encode()
    if len(told) != len(wanted) or differing(told, wanted) != 1:
        return None
    return reassigned(data, message, key, number)


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
