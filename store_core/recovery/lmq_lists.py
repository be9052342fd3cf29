"""Repair lists of light queues with wrong names or numbers, at which a broker's dispatch may fail (store behaviour 4.11).

A list may contain something that is no number. Either it was damaged, and the entry of the light queue that points to the record
proves the number; or a broker wrote no number, as it does for queues of other kinds in such a list. If no entry proves a number,
or there is no room for it, the list gets another length than the list of names has: a broker skips it.

A damaged name or number, or a damaged property name of either list, puts the record into another queue or at another number. The
entry of its own queue points to it from a number that nothing else has. If more of a list is gone than that, it is built from
the entries of all its queues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, permutations
from typing import Final

from store_core.codec.properties import last_value
from store_core.codec.record import Message, decode_record, property_crc_ok
from store_core.derive.dispatch import (
    LIST_SEPARATOR,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    bad_numbers,
    has_lmq,
    java_split,
    light_key,
    light_queues,
)
from store_core.derive.queues import QueueBuilder
from store_core.layout import paths, record
from store_core.read.queue import Queue
from store_core.read.records import read_message
from store_core.recovery.header_repair import Repair
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.wrong_queue import differing, open_numbers, record_at
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_SEPARATOR: Final = LIST_SEPARATOR.encode()
_DIGIT: Final = b"0"
_UNKNOWN: Final = b"?"
_PROPERTY_SEPARATOR: Final = bytes([record.PROPERTY_SEPARATOR])
_NAME_VALUE_SEPARATOR: Final = bytes([record.NAME_VALUE_SEPARATOR])
_FARTHEST: Final = 16  # lower numbers that are checked
_LEAST_AROUND: Final = 16  # bytes that a damaged list must still have, because the names of both lists start alike
_MOST_PERMUTED: Final = 4  # light queues of a record whose order is unknown
_MOST_NUMBERS: Final = 1 << 12  # of a queue that are checked
_MOST_ALIKE: Final = 1 << 10  # queues whose names are compared with each other
_FEW: Final = 4  # messages of a queue that damage alone may have created
_FEW_NUMBERS: Final = 64  # of such a queue that are checked


def relisted(store: Store, phy_offsets: Iterable[int]) -> list[Repair]:
    """Return repairs of the records at some offsets of the store's log at which dispatch fails."""
    queues: dict[QueueKey, Queue] = {}
    return [repair for at in phy_offsets if (repair := _relisted(store, queues, at)) is not None]


def renamed(store: Store, log: SegmentSequence, builder: QueueBuilder) -> Iterator[Repair]:
    """Yield repairs of records of ``log`` that do not list a light queue to which they belong.

    That queue's entry points to the record; or, without entries, the record lists a queue of nearly the same name, and this queue
    lacks exactly that number at that place. ``builder`` has the queues of ``log``.
    """
    done = set()  # each queue of a list leads to the same wrong property name
    from_entries = [*_from_queue_entries(store, builder)]
    of_record: dict[tuple[int, int | None], dict[str, int]] = {}
    for key, number, phy_offset, size_bytes in from_entries:
        of_record.setdefault((phy_offset, size_bytes), {})[key.topic] = number
    for key, number, phy_offset, size_bytes in (*from_entries, *_alike(store, builder)):
        found = record_at(log, phy_offset) if phy_offset not in done else None
        if (
            found is not None
            and size_bytes in (None, found[1].size_bytes)
            and not _is_at_home(store, builder, found[1], key)
        ):
            repair = _renamed(store, *found, key, number)
            if repair is None and size_bytes is not None:
                repair = _rewritten(store, *found, of_record[phy_offset, size_bytes])
            if repair is not None:
                done.add(phy_offset)
                yield repair


def _from_queue_entries(store: Store, builder: QueueBuilder) -> Iterator[tuple[QueueKey, int, int, int | None]]:
    """Yield numbers of light queues that no record lists, and the offset and size in their entries."""
    for key in store.queues:
        if not key.topic.startswith(paths.LMQ_PREFIX):
            continue
        summary = builder.summary(key)
        # A number that is too low looks like a queue that was created again, so entries after its end count, too.
        reach = Queue(store.queues[key], store.log).max_offset if summary.superseded else 0
        later = range(summary.end_queue_offset, reach)
        for number in islice(chain(open_numbers(builder, key), later), _MOST_NUMBERS):
            phy_offset, size_bytes, _ = queue_entry_at(store, key, number) or (-1, 0, 0)
            if phy_offset >= 0 and size_bytes > 0:
                yield key, number, phy_offset, size_bytes


def _alike(store: Store, builder: QueueBuilder) -> Iterator[tuple[QueueKey, int, int, int | None]]:
    """Yield numbers of queues without files that a queue lacks whose name differs in one byte."""
    light = [key for key in builder.queue_keys() if key.topic.startswith(paths.LMQ_PREFIX)]
    odd = [key for key in builder.queue_keys() if key not in store.queues and builder.summary(key).messages <= _FEW]
    if len(light) > _MOST_ALIKE or len(odd) > _MOST_ALIKE:
        return
    for key in odd:
        others = [other for other in light if _differ_in_a_byte(key.topic, other.topic)]
        summary = builder.summary(key)
        numbers = range(summary.first_queue_offset, summary.end_queue_offset) if others else ()
        for number in islice(numbers, _FEW_NUMBERS):
            at = builder.phy_offset_of(key, number)
            lacking = [other for other in others if at is not None and _lacks(builder, other, number, at)]
            if at is not None and len(lacking) == 1:
                yield lacking[0], number, at, None


def _lacks(builder: QueueBuilder, key: QueueKey, number: int, phy_offset: int) -> bool:
    """Return True if a queue lacks a number, and its neighbours lie before and after an offset."""
    before, at, after = (builder.phy_offset_of(key, number + step) for step in (-1, 0, 1))
    return at is None and before is not None and after is not None and before < phy_offset < after


def _differ_in_a_byte(first: str, second: str) -> bool:
    first_bytes, second_bytes = first.encode(), second.encode()
    return len(first_bytes) == len(second_bytes) and differing(first_bytes, second_bytes) == 1


def _is_at_home(store: Store, builder: QueueBuilder, message: Message, key: QueueKey) -> bool:
    """Return True if a record lists a queue with a number that the neighbouring records of the queue confirm.

    An entry of another number that points to the record is out of place then.
    """
    number = next((listed for name, listed in light_queues(message.properties) if name == key.topic), None)
    if number is None or builder.phy_offset_of(key, number) != message.phy_offset:
        return False
    after = builder.phy_offset_of(key, number + 1)
    if after is not None and after < message.phy_offset:
        return False
    for other in range(number - 1, max(number - _FARTHEST, 0) - 1, -1):
        before = builder.phy_offset_of(key, other)
        if before is not None:
            # If numbers between are gone, this one counts if the entry of the number before them is out of place as well.
            is_moved = other < number - 1 and (queue_entry_at(store, key, other) or (before,))[0] != before
            return before < message.phy_offset and (is_moved or other == number - 1)
    return number == 0 and not builder.summary(key).superseded


def _renamed(store: Store, data: bytes, message: Message, key: QueueKey, number: int) -> Repair | None:
    """Return the record with the only change in its properties that puts it at a number of a light queue."""
    raw = message.raw_properties
    front = data[: len(data) - len(raw)]
    found = set()
    for changed in (*_named(raw), *_listing(store, message, key, number)):
        properties = decode_record(front + changed, 0, message.phy_offset).properties
        if (key.topic, number) in light_queues(properties) and property_crc_ok(front + changed) is not False:
            found.add(changed)
    if len(found) != 1 or raw in found:
        return None
    return _with_properties(message, found.pop())


def _with_properties(message: Message, changed: bytes) -> Repair:
    place = message.topic, message.queue_id, message.queue_offset
    at = message.phy_offset + message.size_bytes - len(changed)
    return Repair(*place, message.phy_offset, message.size_bytes, ("properties",), ((at, changed),))


def _rewritten(store: Store, data: bytes, message: Message, from_entries: Mapping[str, int]) -> Repair | None:
    """Return the record with both lists built from the entries of its light queues, in their places or over zeros."""
    raw, listed = message.raw_properties, light_queues(message.properties)
    wanted = {**{name: number for name, number in listed if _leads_there(store, name, number, message)}, **from_entries}
    found = []
    for names in permutations(wanted) if len(wanted) <= _MOST_PERMUTED else ():
        numbers = (str(wanted[name]) for name in names)
        changed: bytes | None = raw
        for name, values in ((MULTI_DISPATCH, names), (MULTI_QUEUE_OFFSET, numbers)):
            changed = _with_list(changed, name.encode(), LIST_SEPARATOR.join(values).encode()) if changed else None
        if changed is not None:
            fixed = data[: len(data) - len(raw)] + changed
            properties = decode_record(fixed, 0, message.phy_offset).properties
            if dict(light_queues(properties)) == wanted and property_crc_ok(fixed) is not False:
                found.append(changed)
    found.sort(key=lambda changed: differing(raw, changed))
    return _with_properties(message, found[0]) if found and found[0] != raw else None


def _with_list(raw: bytes, name: bytes, text: bytes) -> bytes | None:
    """Return properties of the same length with ``text`` as the list ``name``; None if there is no room for it."""
    present = last_value(raw, name)
    if present is not None and len(present[1]) == len(text):
        return raw[: present[0]] + text + raw[present[0] + len(text) :]
    return _under_damage(raw, name + _NAME_VALUE_SEPARATOR + text)


def _under_damage(raw: bytes, whole: bytes) -> bytes | None:
    """Return properties with ``whole`` where only zeros or one damaged range in it hide it; None without such a place."""
    framed = _PROPERTY_SEPARATOR + whole + _PROPERTY_SEPARATOR
    frame = _PROPERTY_SEPARATOR + raw + _PROPERTY_SEPARATOR
    most_equal, found = -1, None
    for at in range(len(frame) - len(framed) + 1):
        if frame[at] not in (0, framed[0]):
            continue
        odd = [n for n, byte in enumerate(framed) if frame[at + n] != byte]
        same = len(framed) - len(odd)
        is_hidden = not any(frame[at + n] for n in odd)
        is_inside = bool(odd) and odd[0] > 0 and odd[-1] < len(framed) - 1
        is_harmed = is_inside and same >= _LEAST_AROUND and odd[-1] - odd[0] < len(odd)
        if (is_hidden or is_harmed) and same > most_equal:
            most_equal, found = same, (frame[:at] + framed + frame[at + len(framed) :])[1:-1]
    return found


def _named(raw: bytes) -> Iterator[bytes]:
    """Yield properties with one property name that differs from a list's in one byte corrected."""
    at = 0
    for segment in raw.split(_PROPERTY_SEPARATOR):
        for name in (MULTI_DISPATCH, MULTI_QUEUE_OFFSET):
            start = name.encode() + _NAME_VALUE_SEPARATOR
            if len(segment) > len(start) and differing(segment[: len(start)], start) == 1:
                yield raw[:at] + start + raw[at + len(start) :]
        at += len(segment) + 1


def _listing(store: Store, message: Message, key: QueueKey, number: int) -> Iterator[bytes]:
    """Yield properties with another name, or another number, in a list."""
    raw, listed, topic = message.raw_properties, light_queues(message.properties), key.topic.encode()
    for name, index, new in ((MULTI_DISPATCH, 0, topic), (MULTI_QUEUE_OFFSET, 1, str(number).encode())):
        found = last_value(raw, name.encode())
        at, value = found if found is not None else (0, b"")
        parts: list[bytes] = value.split(_SEPARATOR)
        if _NAME_VALUE_SEPARATOR in parts[-1] and parts[-1].startswith(new):  # the separator after the list was damaged
            end = at + len(value) - len(parts[-1]) + len(new)
            yield raw[:end] + _PROPERTY_SEPARATOR + raw[end + 1 :]
        for place, queue_and_number in enumerate(listed):
            is_like = queue_and_number[1 - index] == (key.topic, number)[1 - index] and len(new) <= len(parts[place])
            if (
                is_like
                and (index or len(new) == len(parts[place]))
                and not _leads_there(store, *queue_and_number, message)
            ):
                others = [*parts[:place], new.rjust(len(parts[place]), _DIGIT), *parts[place + 1 :]]
                yield raw[:at] + _SEPARATOR.join(others) + raw[at + len(value) :]


def _leads_there(store: Store, name: str, number: int, message: Message) -> bool:
    entry = queue_entry_at(store, light_key(name, message.queue_id, lmq=has_lmq(store)), number)
    return entry is not None and entry[:2] == (message.phy_offset, message.size_bytes)


def _relisted(store: Store, queues: dict[QueueKey, Queue], phy_offset: int) -> Repair | None:
    message = read_message(store.log, phy_offset)
    if message is None or not bad_numbers(message.properties):
        return None
    found = last_value(message.raw_properties, MULTI_QUEUE_OFFSET.encode())
    assert found is not None  # it has bad numbers
    data, numbers = store.log.read(phy_offset, message.size_bytes), found[1]
    at = message.size_bytes - len(message.raw_properties) + found[0]
    for new, is_proven in _candidates(store, queues, message, numbers):
        fixed = data[:at] + new + data[at + len(numbers) :]
        properties = decode_record(fixed, 0, phy_offset).properties
        is_better = not bad_numbers(properties) and bool(light_queues(properties)) is is_proven
        if is_better and property_crc_ok(fixed) is not False:
            place = message.topic, message.queue_id, message.queue_offset
            return Repair(*place, phy_offset, message.size_bytes, ("properties",), ((phy_offset + at, new),))
    return None


def _candidates(
    store: Store, queues: dict[QueueKey, Queue], message: Message, numbers: bytes
) -> Iterator[tuple[bytes, bool]]:
    """Yield lists of the same length, with True if entries prove all numbers.

    The others differ in one byte; those that change no digit come first.
    """
    names = java_split(message.properties[MULTI_DISPATCH])
    parts: list[bytes] = numbers.split(_SEPARATOR)
    for place in bad_numbers(message.properties):
        number = _number(store, queues, light_key(names[place], message.queue_id, lmq=has_lmq(store)), message)
        text = b"" if number is None else str(number).encode()
        parts[place] = text.rjust(len(parts[place]), _DIGIT) if 0 < len(text) <= len(parts[place]) else _UNKNOWN
    if _UNKNOWN not in parts:
        yield _SEPARATOR.join(parts), True
    for at in sorted(range(len(numbers)), key=lambda at: numbers[at : at + 1].isdigit()):
        other = _DIGIT if numbers[at : at + 1] == _SEPARATOR else _SEPARATOR
        yield numbers[:at] + other + numbers[at + 1 :], False


def _number(store: Store, queues: dict[QueueKey, Queue], key: QueueKey, message: Message) -> int | None:
    """Return the number of a queue's entry that points to a record; None without one."""
    if key not in store.queues:
        return None
    queue = queues.setdefault(key, Queue(store.queues[key], store.log))

    def phy_offset_at(queue_offset: int) -> int:
        entry = queue.entry(queue_offset)
        return -1 if entry is None else entry.phy_offset

    number = bisect_left(range(queue.max_offset), message.phy_offset, key=phy_offset_at)
    entry = queue.entry(number) if number < queue.max_offset else None
    is_its = entry is not None and (entry.phy_offset, entry.size_bytes) == (message.phy_offset, message.size_bytes)
    return number if is_its else None
