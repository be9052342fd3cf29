"""Make each message column from a table's columns and the parts that the kernel cut out of its window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_core.codec.compression import compression_kind
from store_core.codec.record import transaction_kind
from store_core.codec.text import decode_text
from store_core.export.rows import schema
from store_core.export.rows.bodies import Bodies
from store_core.export.rows.kinds import TOMBSTONE, topic_kind
from store_core.kernel.arrow import ArrowColumns, Texts, Words
from store_core.kernel.codes import ArrowPart, FrameCode
from store_core.layout import record

_MICROSECONDS: Final = 1000
_CRC_WORDS: Final = pa.array(["ok", "bad"])
_BAD_CRC: Final = int(FrameCode.BAD_CRC)
_MANY_TOPICS: Final = 1 << 10  # topics kept between windows; each may have 32 KiB


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts that the kernel cut out of a window for ``count`` rows; ``column`` returns a table's column.

    ``topics`` are the topics that ``topic_id`` numbers. ``in_words``: make columns as ``schema.WRITTEN`` has them,
    unless the kernel has met too many words.
    """

    column: Callable[[str], NDArray[Any]]
    topics: tuple[bytes, ...]
    count: int
    store: str
    parts: ArrowColumns
    bodies: Bodies
    in_words: bool = False


def array_of(name: str, cut: Cut) -> pa.Array:
    """Return one column of ``schema.MESSAGES``; ``cut.parts`` has the parts of ``parts_of``."""
    return _MAKERS[name](cut)


def parts_of(names: Iterable[str]) -> int:
    """Return the ArrowParts that these columns are made of."""
    return int(reduce(or_, (_PARTS[name] for name in names if name in _PARTS), ArrowPart(0)))


def _numbers(name: str) -> Callable[[Cut], pa.Array]:
    """Return a function that makes a column from the table's numbers."""
    kind = schema.MESSAGES.field(name).type.to_pandas_dtype()
    return lambda cut: pa.array(cut.column(name).astype(kind, copy=False))


def _texts(name: str) -> Callable[[Cut], pa.Array]:
    """Return a function that makes a column from the kernel's text, without a copy."""
    return lambda cut: _array(pa.string(), getattr(cut.parts, name))


def _array(kind: pa.DataType, texts: Texts | Words | None) -> pa.Array:
    assert texts is not None
    valid = None if texts.valid is None else pa.py_buffer(texts.valid)
    if isinstance(texts, Words):
        numbers = pa.Array.from_buffers(pa.int32(), len(texts.numbers), [valid, pa.py_buffer(texts.numbers)])
        return pa.DictionaryArray.from_arrays(numbers, _array(kind, texts.texts), safe=False)  # the kernel counted
    buffers = [valid, pa.py_buffer(texts.offsets), pa.py_buffer(texts.data)]
    return pa.Array.from_buffers(kind, len(texts.offsets) - 1, buffers)


def _keys(cut: Cut) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(cut.parts.key_bounds), _array(pa.string(), cut.parts.keys))


def _properties(cut: Cut) -> pa.MapArray:
    names, values = (_array(pa.string(), texts) for texts in (cut.parts.names, cut.parts.values))
    return pa.MapArray.from_arrays(pa.array(cut.parts.pair_bounds), names, values)


def _body(cut: Cut) -> pa.BinaryArray:
    return cut.bodies.body(_array(pa.binary(), cut.parts.body))


def _stored_body(cut: Cut) -> pa.BinaryArray:
    return cut.bodies.stored_body(_array(pa.binary(), cut.parts.body))


def _by_topic(text_of: Callable[[str], str]) -> Callable[[Cut], pa.Array]:
    @lru_cache(_MANY_TOPICS)
    def word_of(topic: bytes) -> str:
        return text_of(decode_text(topic))

    def made(cut: Cut) -> pa.Array:
        words = [word_of(topic) for topic in cut.topics]
        if len(set(words)) == 1:
            return _repeated(words[0], cut)
        return _taken(pa.array(words, pa.string()), cut.column("topic_id"), cut)

    return made


_kind_of_topic: Final = _by_topic(topic_kind)


def _kind(cut: Cut) -> pa.Array:
    kinds = _kind_of_topic(cut)
    assert cut.parts.tombstone is not None
    if not cut.parts.tombstone.any():
        return kinds
    bits = pa.Array.from_buffers(pa.bool_(), cut.count, [None, pa.py_buffer(cut.parts.tombstone)])
    plain = kinds.dictionary_decode() if cut.in_words else kinds
    marked = pc.if_else(bits, pa.scalar(TOMBSTONE), plain)
    return marked.dictionary_encode() if cut.in_words else marked


def _by_flags(text_of: Callable[[int], str], mask: int) -> Callable[[Cut], pa.Array]:
    """Return a function that makes a column with a word for some bits of each row's sysFlag."""
    words = pa.array([text_of(bits) for bits in range(mask + 1)], pa.string())
    return lambda cut: _taken(words, cut.column("sys_flag") & mask, cut)


def _taken(texts: pa.StringArray, numbers: NDArray[Any], cut: Cut) -> pa.Array:
    """Return ``texts[number]`` for each number; equal numbers, as most are, take a quicker way."""
    if (numbers == numbers[0]).all():
        return _repeated(texts[int(numbers[0])].as_py(), cut)
    taken = texts.take(pa.array(numbers))
    return taken.dictionary_encode() if cut.in_words else taken


def _repeated(text: str, cut: Cut) -> pa.Array:
    """Return the same text for all rows."""
    count = 1 << (cut.count - 1).bit_length()
    if cut.in_words:
        numbers = _many_zeros(count).slice(0, cut.count)
        return pa.DictionaryArray.from_arrays(numbers, pa.array([text], pa.string()), safe=False)
    return _many(text, count).slice(0, cut.count)


@lru_cache(maxsize=2)
def _many_zeros(count: int) -> pa.Int32Array:
    return pa.array(np.zeros(count, np.int32))


@lru_cache(maxsize=12)  # each is no longer than a window, whose records contain the text too
def _many(text: str, count: int) -> pa.StringArray:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _crc(cut: Cut) -> pa.StringArray:
    return _taken(_CRC_WORDS, (cut.column("code") == _BAD_CRC).view(np.int8), cut)


def _times(name: str) -> Callable[[Cut], pa.Array]:
    return lambda cut: microseconds(cut.column(name))


def microseconds(timestamp_ms: NDArray[Any]) -> pa.TimestampArray:
    """Convert milliseconds to microseconds; null for numbers that are no time."""
    least, largest = schema.LEAST_TIME_MS, schema.LARGEST_TIME_MS
    if not len(timestamp_ms) or least <= timestamp_ms.min() <= timestamp_ms.max() <= largest:
        return pa.array(timestamp_ms * _MICROSECONDS).view(schema.TIME)
    beyond = (timestamp_ms > largest) | (timestamp_ms < least)
    return pa.array(np.where(beyond, 0, timestamp_ms) * _MICROSECONDS, mask=beyond).view(schema.TIME)


# Columns of a FrameTable that the message columns are made of, besides topic_id.
FIXED_COLUMNS: Final = (
    "phy_offset",
    "size_bytes",
    "code",
    "magic",
    "queue_id",
    "queue_offset",
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "store_timestamp_ms",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_crc",
    "body_length",
)
_PARTS: Final[dict[str, ArrowPart]] = {
    "kind": ArrowPart.MARKS,
    "offset_msg_id": ArrowPart.IDS,
    "unique_key": ArrowPart.KEYS,
    "tags": ArrowPart.KEYS,
    "keys": ArrowPart.KEYS,
    "born_host": ArrowPart.HOSTS,
    "store_host": ArrowPart.HOSTS,
    "properties": ArrowPart.PROPERTIES,
    "body": ArrowPart.BODIES,
    "stored_body": ArrowPart.BODIES,
    "tags_code": ArrowPart.MARKS,
}
_MAKERS: Final[dict[str, Callable[[Cut], pa.Array]]] = {
    "store": lambda cut: _repeated(cut.store, cut),
    "phy_offset": _numbers("phy_offset"),
    "size_bytes": _numbers("size_bytes"),
    "topic": _by_topic(str),
    "kind": _kind,
    "queue_id": _numbers("queue_id"),
    "queue_offset": _numbers("queue_offset"),
    "offset_msg_id": _texts("offset_msg_id"),
    "unique_key": _texts("unique_key"),
    "tags": _texts("tags"),
    "keys": _keys,
    "flag": _numbers("flag"),
    "sys_flag": _numbers("sys_flag"),
    "transaction": _by_flags(transaction_kind, record.TRANSACTION_MASK),
    "compression": _by_flags(compression_kind, record.COMPRESSION_MASK | record.FLAG_COMPRESSED),
    "born_time": _times("born_timestamp_ms"),
    "born_host": _texts("born_host"),
    "store_time": _times("store_timestamp_ms"),
    "store_host": _texts("store_host"),
    "reconsume_times": _numbers("reconsume_times"),
    "prepared_transaction_offset": _numbers("prepared_transaction_offset"),
    "body_crc": _numbers("body_crc"),
    "crc": _crc,
    "properties": _properties,
    "body_size_bytes": lambda cut: pa.array(cut.column("body_length")),
    "body": _body,
    "body_decoded": lambda cut: cut.bodies.decoded(),
    "stored_body": _stored_body,
    "tags_code": lambda cut: pa.array(cut.parts.tags_code),
    "record_version": lambda cut: pa.array(np.where(cut.column("magic") == record.MAGIC_V2, np.int32(2), np.int32(1))),
}
