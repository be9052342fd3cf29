"""A window's messages as Arrow record batches, by columns. The rows mean what ``codec.record.Message`` means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_core.codec.compression import BodyError, compression_kind, decompress
from store_core.codec.record import transaction_kind
from store_core.codec.text import decode_text
from store_core.export.rows import schema
from store_core.export.rows.hosts import host_texts, message_ids
from store_core.export.rows.properties import Ints, Mask, PropertyColumns, property_columns, split_keys_column
from store_core.findings import Finding, finding
from store_core.kernel.codes import FrameCode
from store_core.layout import paths, record
from store_core.layout.timer import TIMER_TOPIC
from store_core.scan.frames import FrameTable

DECODED_LIMIT_BYTES: Final = 64 << 20  # plain bodies in one batch, however much they inflate
_MICROSECONDS: Final = 1000
_LARGEST_MS: Final = np.iinfo(np.int64).max // _MICROSECONDS
_KINDS: Final = {
    paths.HALF_TOPIC: "half",
    paths.OP_TOPIC: "op",
    paths.SCHEDULE_TOPIC: "delayed",
    TIMER_TOPIC: "delayed",
    paths.TRANSACTION_CHECK_TOPIC: "system",
}
_KIND_PREFIXES: Final = (
    (paths.RETRY_PREFIX, "retry"),
    (paths.DLQ_PREFIX, "dlq"),
    (paths.SYSTEM_TOPIC_PREFIX, "system"),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some messages as columns, with a finding (L012) for each body that cannot be decompressed."""

    rows: pa.RecordBatch
    findings: tuple[Finding, ...] = ()


def topic_kind(topic: str) -> str:
    """What the topic makes of its messages: user, half, op, delayed, retry, dlq or system."""
    by_prefix = (kind for prefix, kind in _KIND_PREFIXES if topic.startswith(prefix))
    return _KINDS.get(topic) or next(by_prefix, "user")


def message_batches(table: FrameTable, rows: Ints, store: str, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """The messages with these row numbers (ascending) as batches of ``schema.MESSAGES``, in order.

    ``columns``: names of those wanted, at least one, in the order wanted; the others are not decoded, and without ``body`` and
    ``body_decoded`` no body is decompressed, so that no finding tells of one. The batches own their bytes. There is one
    unless the bodies inflate to more than ``DECODED_LIMIT_BYTES``. Raises KeyError for a name that is no column's.
    """
    if not len(rows):
        return
    names = schema.MESSAGES.names if columns is None else list(columns)
    compressed = (table.sys_flag[rows] & record.FLAG_COMPRESSED) != 0
    if not compressed.any() or not {"body", "body_decoded"}.intersection(names):
        yield Batch(_batch(table, rows, store, None, compressed, names))
        return
    start, size_bytes = 0, 0
    bodies: list[bytes | None] = []
    findings: list[Finding] = []
    for place in np.flatnonzero(compressed):  # the libraries take one body at a time
        body, found = _plain_body(table, int(rows[place]))
        bodies.append(body)
        findings += found
        size_bytes += len(body or b"")
        if size_bytes > DECODED_LIMIT_BYTES:
            part = slice(start, int(place) + 1)
            yield Batch(_batch(table, rows[part], store, bodies, compressed[part], names), tuple(findings))
            start, size_bytes, bodies, findings = int(place) + 1, 0, [], []
    if start < len(rows):
        yield Batch(_batch(table, rows[start:], store, bodies, compressed[start:], names), tuple(findings))


def _plain_body(table: FrameTable, row: int) -> tuple[bytes | None, list[Finding]]:
    try:
        return decompress(table.body(row), int(table.sys_flag[row])), []
    except BodyError as error:
        told = finding(
            "L012",
            f"the body is given as stored: {error}",
            phy_offset=int(table.phy_offset[row]),
            size_bytes=int(table.size_bytes[row]),
            topic=decode_text(table.topic(row)),
            queue_id=int(table.queue_id[row]),
            queue_offset=int(table.queue_offset[row]),
        )
        return None, [told]


def _batch(
    table: FrameTable,
    rows: Ints,
    store: str,
    plain: Sequence[bytes | None] | None,
    compressed: Mask,
    names: Sequence[str],
) -> pa.RecordBatch:
    """``plain``: bodies of the compressed rows, None where one cannot be read; None where none is wanted."""
    window = np.frombuffer(table.window, np.uint8)
    at = table.phy_offset[rows] - table.window_phy_offset
    sys_flag = table.sys_flag[rows]
    born_v6 = (sys_flag & record.FLAG_BORN_HOST_V6) != 0
    store_v6 = (sys_flag & record.FLAG_STORE_HOST_V6) != 0
    short, long = record.host_size_bytes(False), record.host_size_bytes(True)
    store_host_at = at + record.store_host_at(0) + np.where(born_v6, long - short, 0)

    @cache
    def properties() -> PropertyColumns:
        return property_columns(_cut(table, table.properties_at[rows], table.properties_length[rows]))

    topics = [decode_text(bytes(topic)) for topic in table.topics]
    topic_id = pa.array(table.topic_id[rows])

    @cache
    def bodies() -> tuple[pa.BinaryArray, pa.BooleanArray, pa.BinaryArray]:
        return _bodies(_cut(table, table.body_at[rows], table.body_length[rows]), plain, compressed)

    columns: dict[str, Callable[[], pa.Array]] = {
        "store": lambda: pa.repeat(pa.scalar(store), len(rows)),
        "phy_offset": lambda: pa.array(table.phy_offset[rows]),
        "size_bytes": lambda: pa.array(table.size_bytes[rows].astype(np.int32)),
        "topic": lambda: pa.array(topics, pa.string()).take(topic_id),
        "kind": lambda: pa.array(map(topic_kind, topics), pa.string()).take(topic_id),
        "queue_id": lambda: pa.array(table.queue_id[rows]),
        "queue_offset": lambda: pa.array(table.queue_offset[rows]),
        "offset_msg_id": lambda: message_ids(window, store_host_at, store_v6, table.own_phy_offset[rows]),
        "unique_key": lambda: properties().unique_key,
        "tags": lambda: properties().tags,
        "keys": lambda: split_keys_column(properties().keys),
        "flag": lambda: pa.array(table.flag[rows]),
        "sys_flag": lambda: pa.array(sys_flag),
        "transaction": lambda: _text_by_flags(sys_flag, transaction_kind),
        "compression": lambda: _text_by_flags(sys_flag, compression_kind),
        "born_time": lambda: _times(table.born_timestamp_ms[rows]),
        "born_host": lambda: host_texts(window, at + record.born_host_at(), born_v6),
        "store_time": lambda: _times(table.store_timestamp_ms[rows]),
        "store_host": lambda: host_texts(window, store_host_at, store_v6),
        "reconsume_times": lambda: pa.array(table.reconsume_times[rows]),
        "prepared_transaction_offset": lambda: pa.array(table.prepared_transaction_offset[rows]),
        "body_crc": lambda: pa.array(table.body_crc[rows]),
        "crc": lambda: pa.array(["ok", "bad"]).take(pa.array((table.code[rows] == FrameCode.BAD_CRC).astype(np.int8))),
        "properties": lambda: properties().maps,
        "body_size_bytes": lambda: pa.array(table.body_length[rows]),
        "body": lambda: bodies()[0],
        "body_decoded": lambda: bodies()[1],
        "stored_body": lambda: bodies()[2],
    }
    fields = [schema.MESSAGES.field(name) for name in names]
    return pa.RecordBatch.from_arrays([columns[name]() for name in names], schema=pa.schema(fields))


def _cut(table: FrameTable, at: Ints, length: Ints) -> pa.BinaryArray:
    """The bytes [at, at + length) of the window, row by row, copied out of it."""
    bounds = np.empty(2 * len(at), np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + length.astype(np.int64)
    every = pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(table.window)]
    )
    return every.take(pa.array(np.arange(0, len(bounds), 2)))


def _bodies(
    stored: pa.BinaryArray, plain: Sequence[bytes | None] | None, compressed: Mask
) -> tuple[pa.BinaryArray, pa.BooleanArray, pa.BinaryArray]:
    """``body``, ``body_decoded`` and ``stored_body``."""
    if plain is None and not compressed.any():
        return stored, pa.array(np.ones(len(stored), np.bool_)), pa.nulls(len(stored), pa.binary())
    read = np.ones(len(stored), np.bool_)
    plain = plain or [None] * int(compressed.sum())
    read[compressed] = [body is not None for body in plain]
    replaced = pa.array(compressed & read)
    found = pa.array([body for body in plain if body is not None], pa.binary())
    body = pc.replace_with_mask(stored, replaced, found)
    return body, pa.array(read), pc.if_else(pa.array(compressed), stored, pa.scalar(None, pa.binary()))


def _text_by_flags(flags: Ints, text_of: Callable[[int], str]) -> pa.StringArray:
    """A word for each row's flags, of which there are few different ones."""
    encoded = pa.array(flags).dictionary_encode()
    return pa.array(map(text_of, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)


def _times(timestamp_ms: NDArray[Any]) -> pa.TimestampArray:
    """Milliseconds to microseconds; null where that does not fit."""
    beyond = (timestamp_ms > _LARGEST_MS) | (timestamp_ms < -_LARGEST_MS)
    microseconds = np.where(beyond, 0, timestamp_ms) * _MICROSECONDS
    return pa.array(microseconds, mask=beyond if beyond.any() else None).cast(schema.TIME)
