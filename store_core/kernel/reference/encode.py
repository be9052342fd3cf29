"""Encode messages in readable Python (compiled: src/encode.rs). See ``encode`` for arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_core.codec import record as codec
from store_core.codec.properties import TAGS, format_properties
from store_core.codec.tags import in_java_order, index_text_hash, index_texts, tags_code
from store_core.kernel.codes import EncodeRefusal
from store_core.layout import record

Ints = NDArray[Any]
Rules = tuple[bool, bool, int, bool]
_HOST_SIZES = (record.HOST_V4_SIZE_BYTES, record.HOST_V6_SIZE_BYTES)


def encode_record(
    topic: str,
    body: bytes,
    properties: Mapping[str, str],
    numbers: tuple[int, ...],
    born_host: bytes,
    store_host: bytes,
    rules: Rules,
) -> tuple[bytes, int, list[int]]:
    """Encode by the codec, and derive what follows from the properties."""
    if not {len(born_host), len(store_host)} <= {*_HOST_SIZES}:
        raise ValueError("a host has 8 or 20 bytes")
    final_separator, property_crc, map_size, index_tags = rules
    queue_id, flag, queue_offset, phy_offset, sys_flag, born_ms, store_ms, reconsume_times, prepared = numbers
    data = codec.encode_record(
        topic=topic,
        body=body,
        properties=in_java_order(properties, map_size) if map_size else properties,
        queue_id=queue_id,
        queue_offset=queue_offset,
        phy_offset=phy_offset,
        born_timestamp_ms=born_ms,
        born_host=born_host,
        store_timestamp_ms=store_ms,
        store_host=store_host,
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        final_separator=final_separator,
        property_crc=property_crc,
    )
    has_keys = sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK
    texts = index_texts(topic, properties, index_tags) if has_keys else []
    return data, tags_code(properties.get(TAGS)), [index_text_hash(text) for text in texts]


def encode_records(
    queues: Sequence[tuple[str, int]],
    next_queue_offset: Ints,
    hosts: Sequence[bytes],
    heads: tuple[Ints, ...],
    bodies: tuple[Ints, Ints],
    pair_bounds: Ints,
    names: tuple[Ints, Ints],
    values: tuple[Ints, Ints],
    added: Sequence[tuple[bytes, bytes]],
    first: int,
    place: tuple[int, ...],
    store_host: bytes,
    rules: Rules,
) -> tuple[Ints, ...]:
    """Encode one message after the other."""
    phy_offset, room, most_bytes, store_ms, longest_body, longest_record = place
    data = bytearray()
    rows: list[tuple[int, int, int, int]] = []
    keys: list[tuple[int, int]] = []
    for row in range(first, len(heads[0])):
        if len(data) >= most_bytes:
            break
        queue, host, flag, sys_flag, born_ms, reconsume_times = (int(column[row]) for column in heads)
        topic, queue_id = queues[queue]
        pairs = [(_text(names, n), _text(values, n)) for n in range(pair_bounds[row], pair_bounds[row + 1])]
        properties = dict([*pairs, *added])
        body, number = _text(bodies, row), int(next_queue_offset[queue])
        numbers = (queue_id, flag, number, phy_offset + len(data), sys_flag, born_ms, store_ms, reconsume_times, 0)
        named = {name.decode(): value.decode() for name, value in properties.items()}
        refusal = _refusal(topic, named, rules)
        if refusal is EncodeRefusal.NOT:
            encoded, code, hashes = encode_record(topic, body, named, numbers, hosts[host], store_host, rules)
            if len(body) > longest_body:
                refusal = EncodeRefusal.BODY
            elif len(encoded) > longest_record:
                refusal = EncodeRefusal.RECORD
        if refusal is not EncodeRefusal.NOT:
            rows.append((refusal, 0, number, 0))
            continue
        if len(data) + len(encoded) + record.PREFIX.size_bytes > room:
            break
        keys += [(len(rows), key_hash) for key_hash in hashes]
        rows.append((refusal, len(encoded), number, code))
        data += encoded
        next_queue_offset[queue] += 1
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    key_columns = np.array(keys, np.int64).reshape(-1, 2).T
    types = (np.uint8, np.int32, np.int64, np.int64)
    return (
        np.frombuffer(bytes(data), np.uint8),
        *(column.astype(kind) for column, kind in zip(columns, types, strict=True)),
        key_columns[0].astype(np.uint32),
        key_columns[1].astype(np.int32),
    )


def _refusal(topic: str, properties: Mapping[str, str], rules: Rules) -> EncodeRefusal:
    final_separator, property_crc, *_ = rules
    try:
        text = format_properties(properties, final_separator)
    except ValueError:
        return EncodeRefusal.SEPARATOR
    length_size = record.topic_length_layout(codec.topic_magic(topic)).size_bytes
    if len(topic.encode()) >> (8 * length_size - 1):
        return EncodeRefusal.TOPIC
    closes = property_crc and bool(text) and text[-1] != record.PROPERTY_SEPARATOR
    length = len(text) + closes + (record.PROPERTY_CRC.size_bytes if property_crc else 0)
    return EncodeRefusal.PROPERTIES if length > record.MAX_PROPERTIES_SIZE_BYTES else EncodeRefusal.NOT


def _text(column: tuple[Ints, Ints], row: int) -> bytes:
    bounds, data = column
    return bytes(data[bounds[row] : bounds[row + 1]].tobytes())
