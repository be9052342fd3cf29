"""Encode messages: a record's bytes, the fields of its queue entry, its index hashes (store format 2 to 4, 6.2, 7.2); compiled where possible.

Nothing here writes to a file: the caller gets bytes and says where they will lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import is_native

Ints = NDArray[Any]


class EncodeRules(NamedTuple):
    """The decisions of a release and its settings.

    * ``property_map_size``: first size of the hash map that decides the properties' order; 0: they are in order.
    * ``index_tags``: tags are indexed, after a record's keys.
    """

    final_separator: bool
    property_crc: bool
    property_map_size: int
    index_tags: bool


class Numbers(NamedTuple):
    """The numbers of a message and its place. ``prepared_phy_offset``: of a committed message's half."""

    queue_id: int
    flag: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    reconsume_times: int
    prepared_phy_offset: int


class Encoded(NamedTuple):
    """A record, the tags code of its queue entry, and the hashes under which the index holds it, in the broker's order."""

    data: bytes
    tags_code: int
    key_hashes: list[int]


class TextColumn(NamedTuple):
    """A column of bytes: row i is ``data[bounds[i]:bounds[i + 1]]``. i64[n + 1] and u8."""

    bounds: Ints
    data: Ints

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> TextColumn:
        bounds = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=bounds[1:])
        return cls(bounds, np.frombuffer(b"".join(texts), np.uint8))


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Messages to encode. All columns but the last three have a row for each message.

    * ``queue`` i32: a number in ``queues``, which are (topic, queue id). ``host`` i32: a number in ``hosts``, born hosts as stored.
    * ``flag``, ``sys_flag``, ``reconsume_times`` i32; ``born_timestamp_ms`` i64; ``body`` as stored.
    * ``pair_bounds`` i64[n + 1]: message i has the properties from pair_bounds[i] to pair_bounds[i + 1] in ``names`` and ``values``.
    """

    queues: Sequence[tuple[str, int]]
    hosts: Sequence[bytes]
    queue: Ints
    host: Ints
    flag: Ints
    sys_flag: Ints
    born_timestamp_ms: Ints
    reconsume_times: Ints
    body: TextColumn
    pair_bounds: Ints
    names: TextColumn
    values: TextColumn

    def __len__(self) -> int:
        return len(self.queue)


class Place(NamedTuple):
    """The place of the first record, and the limits of one call.

    * ``room_bytes``: up to the segment's end; a blank always fits behind the records. ``most_bytes``: the call ends once the records are as long.
    * A longer body than ``longest_body_bytes`` or record than ``longest_record_bytes`` is refused.
    """

    phy_offset: int
    room_bytes: int
    most_bytes: int
    store_timestamp_ms: int
    longest_body_bytes: int
    longest_record_bytes: int


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Consecutive records, with a row for each message; fewer than were given where the room or the limit was used up.

    * ``data`` u8: the records. ``refusal`` u8: an EncodeRefusal; a refused message has no bytes and no queue offset.
    * ``size_bytes`` i32, ``queue_offset`` i64, ``tags_code`` i64. ``key_row`` u32 and ``key_hash`` i32: the index keys.
    """

    data: Ints
    refusal: Ints
    size_bytes: Ints
    queue_offset: Ints
    tags_code: Ints
    key_row: Ints
    key_hash: Ints

    def __len__(self) -> int:
        return len(self.size_bytes)


def encode_record(
    topic: str,
    body: bytes,
    properties: Mapping[str, str],
    numbers: Numbers,
    born_host: bytes,
    store_host: bytes,
    rules: EncodeRules,
) -> Encoded:
    """Return a message's record. ``body`` is stored unchanged; the hosts are stored bytes, and their flags follow from their lengths.

    Raises ValueError where a part is too long for its field or a property holds a separator.
    """
    pairs = properties if properties.__class__ is dict else dict(properties)
    return Encoded._make(_kernel().encode_record(topic, body, pairs, numbers, born_host, store_host, rules))


def encode_records(
    messages: MessageColumns,
    next_queue_offset: Ints,
    added: Sequence[tuple[bytes, bytes]],
    first: int,
    place: Place,
    store_host: bytes,
    rules: EncodeRules,
) -> EncodedRows:
    """Return the records of the messages from ``first`` on.

    Args:
        next_queue_offset: i64, for each of the queues; the records' numbers are added.
        added: names and values that every message gets after its own.

    Raises:
        ValueError: The columns do not fit each other.
    """
    heads = (
        *(np.ascontiguousarray(column, np.int32) for column in (messages.queue, messages.host, messages.flag)),
        np.ascontiguousarray(messages.sys_flag, np.int32),
        np.ascontiguousarray(messages.born_timestamp_ms, np.int64),
        np.ascontiguousarray(messages.reconsume_times, np.int32),
    )
    columns = _kernel().encode_records(
        list(messages.queues),
        next_queue_offset,
        list(messages.hosts),
        heads,
        tuple(messages.body),
        np.ascontiguousarray(messages.pair_bounds, np.int64),
        tuple(messages.names),
        tuple(messages.values),
        list(added),
        first,
        tuple(place),
        store_host,
        tuple(rules),
    )
    return EncodedRows(*columns)


@cache
def _kernel() -> Any:
    if is_native():
        from store_core.kernel import _native

        return _native
    from store_core.kernel.reference import encode as reference

    return reference
