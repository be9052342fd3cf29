"""Describe records that were in the log and cannot be read any more, and runs of lost messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from store_core.codec.properties import KEYS, UNIQ_KEY, split_keys
from store_core.codec.record import Message
from store_core.derive.dispatch import inner_batch_size, light_queues

MOST_KEYS_PER_RUN: Final = 10


@dataclass(frozen=True, slots=True)
class LostRecord:
    """The known data of a lost record. ``keys`` are its user keys.

    ``batch_size`` messages from ``queue_offset`` on were in it. ``light_queues`` are the queues that its own list named,
    with its number in each. ``tags_code`` is from its queue entry, ``unique_key`` and times are its own. ``is_readable``: the
    record can be read, but the broker that will open the store cannot walk over it.
    """

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int | None = None
    size_bytes: int = 0
    keys: tuple[str, ...] = ()
    batch_size: int = 1
    light_queues: tuple[tuple[str, int], ...] = ()
    is_readable: bool = False
    tags_code: int | None = None
    unique_key: str | None = None
    born_timestamp_ms: int | None = None
    store_timestamp_ms: int | None = None


def from_record_head(message: Message, *, is_readable: bool = False) -> LostRecord:
    """Return the data of a well-formed record, even if its body is damaged."""
    properties = message.properties
    return LostRecord(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        phy_offset=message.phy_offset,
        size_bytes=message.size_bytes,
        keys=tuple(split_keys(properties.get(KEYS))),
        batch_size=inner_batch_size(properties),
        light_queues=light_queues(properties),
        is_readable=is_readable,
        unique_key=properties.get(UNIQ_KEY),
        born_timestamp_ms=message.born_timestamp_ms,
        store_timestamp_ms=message.store_timestamp_ms,
    )


def more_complete(head: LostRecord, entry: LostRecord, *, is_topic_known: bool = True) -> LostRecord:
    """Return the data of a record's head, corrected by its queue entries: queue, number and light queues.

    Entries also correct the topic if no queue has the topic in the head: not ``is_topic_known``.
    """
    if entry.size_bytes == head.size_bytes:
        head = replace(head, light_queues=tuple({**dict(head.light_queues), **dict(entry.light_queues)}.items()))
    if entry.size_bytes == head.size_bytes and (entry.topic == head.topic or not is_topic_known):
        head = replace(head, topic=entry.topic, queue_id=entry.queue_id, queue_offset=entry.queue_offset)
    return replace(head, tags_code=entry.tags_code)


@dataclass(frozen=True, slots=True)
class LostRun:
    """Messages of one queue with consecutive queue offsets. All but ``size_bytes`` are None if unknown.

    ``keys`` are the first few known ones.
    """

    topic: str | None
    queue_id: int | None
    first_queue_offset: int | None
    last_queue_offset: int | None
    messages: int | None
    size_bytes: int
    keys: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return a member of ``lost`` in the command line's contract."""
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "first_queue_offset": self.first_queue_offset,
            "last_queue_offset": self.last_queue_offset,
            "messages": self.messages,
            "bytes": self.size_bytes,
            "keys": list(self.keys),
        }
