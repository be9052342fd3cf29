"""Lists of light queues at which a broker's dispatch fails each time, made such that it does not (store behaviour 4.11).

A number that is none was damaged, and the entry of its light queue that leads to the record tells it; or a broker wrote none, as
it does for queues of other kinds in such a list. Where no entry tells a number, or there is no room for it, the list gets another
length than that of the names has: a broker passes over it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from store_core.codec.record import Message, decode_record, property_crc_ok
from store_core.derive.dispatch import (
    LIST_SEPARATOR,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    bad_numbers,
    java_split,
    light_key,
    light_queues,
)
from store_core.kernel.twin_properties import last_value
from store_core.mend.salvage.repair import Repair
from store_core.read.queue import Queue
from store_core.read.records import read_message
from store_core.storage.store import QueueKey, Store

_SEPARATOR: Final = LIST_SEPARATOR.encode()
_DIGIT: Final = b"0"


def relisted(store: Store, phy_offsets: Iterable[int]) -> list[Repair]:
    """Repairs of those of the records at some offsets of the store's log at which dispatch fails."""
    queues: dict[QueueKey, Queue] = {}
    return [repair for at in phy_offsets if (repair := _relisted(store, queues, at)) is not None]


def _relisted(store: Store, queues: dict[QueueKey, Queue], phy_offset: int) -> Repair | None:
    message = read_message(store.log, phy_offset)
    if message is None or not bad_numbers(message.properties):
        return None
    found = last_value(message.raw_properties, MULTI_QUEUE_OFFSET.encode())
    assert found is not None  # it is bad
    data, numbers = store.log.read(phy_offset, message.size_bytes), found[1]
    at = message.size_bytes - len(message.raw_properties) + found[0]
    for new, is_told in _candidates(store, queues, message, numbers):
        fixed = data[:at] + new + data[at + len(numbers) :]
        properties = decode_record(fixed, 0, phy_offset).properties
        is_better = not bad_numbers(properties) and bool(light_queues(properties)) is is_told
        if is_better and property_crc_ok(fixed) is not False:
            place = message.topic, message.queue_id, message.queue_offset
            return Repair(*place, phy_offset, message.size_bytes, ("properties",), ((phy_offset + at, new),))
    return None


def _candidates(
    store: Store, queues: dict[QueueKey, Queue], message: Message, numbers: bytes
) -> Iterator[tuple[bytes, bool]]:
    """Lists of as many bytes, and whether all their numbers are told by entries; others differ in one byte, rather in one that is no digit."""
    names = java_split(message.properties[MULTI_DISPATCH])
    parts: list[bytes] = numbers.split(_SEPARATOR)
    for place in bad_numbers(message.properties):
        told = _number(store, queues, light_key(names[place], message.queue_id), message)
        parts[place] = b"" if told is None else str(told).encode().rjust(len(parts[place]), _DIGIT)
    yield _SEPARATOR.join(parts).ljust(len(numbers), b"?")[: len(numbers)], True
    for at in sorted(range(len(numbers)), key=lambda at: numbers[at : at + 1].isdigit()):
        other = _DIGIT if numbers[at : at + 1] == _SEPARATOR else _SEPARATOR
        yield numbers[:at] + other + numbers[at + 1 :], False


def _number(store: Store, queues: dict[QueueKey, Queue], key: QueueKey, message: Message) -> int | None:
    """The number of the entry of a queue that leads to a record; None if there is none."""
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
