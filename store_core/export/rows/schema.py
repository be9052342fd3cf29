"""Define the documented Arrow schemas of an export (docs/tables.md).

They have only types that Spark, DuckDB and pandas all read: no dictionary, view, large or millisecond types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

VERSION: Final = 2
TIME: Final = pa.timestamp("us", "UTC")
# Milliseconds since 1970 of the years 1 to 9999, for which Python, Spark and lake tables have dates.
LEAST_TIME_MS: Final = -62_135_596_800_000
LARGEST_TIME_MS: Final = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its Arrow type, nullability, and meaning with its unit; ``repeats`` if many values are equal."""

    name: str
    type: pa.DataType
    meaning: str
    nullable: bool = False
    repeats: bool = False

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, self.nullable)


MESSAGE_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store, as -s NAME=PATH or the broker gave it", repeats=True),
    Column("phy_offset", pa.int64(), "byte offset of the record in the log"),
    Column("size_bytes", pa.int32(), "length of the whole record, bytes"),
    Column("topic", pa.string(), "topic, as stored", repeats=True),
    Column(
        "kind",
        pa.string(),
        "tombstone where rmqctl put it for a lost message; else user, half, op, delayed, retry, dlq or system, as the topic makes it",
        repeats=True,
    ),
    Column("queue_id", pa.int32(), "queue number, from 0"),
    Column("queue_offset", pa.int64(), "entry number in the queue; of an inner batch, its first message's"),
    Column("offset_msg_id", pa.string(), "offset message id, 32 or 56 upper-case hex digits"),
    Column("unique_key", pa.string(), "property UNIQ_KEY; null without one", nullable=True),
    Column("tags", pa.string(), "property TAGS; null without one", nullable=True, repeats=True),
    Column("keys", pa.list_(pa.string()), "the keys in property KEYS; empty without any"),
    Column("flag", pa.int32(), "the user's flag"),
    Column("sys_flag", pa.int32(), "the record's bits: compression, transaction, host lengths, batch"),
    Column("transaction", pa.string(), "none, prepared, commit or rollback", repeats=True),
    Column(
        "compression", pa.string(), "how the stored body is compressed: none, lz4, zstd, zlib or unknown", repeats=True
    ),
    Column(
        "born_time",
        TIME,
        "the producer's clock; null for a number that is no time in the years 1 to 9999",
        nullable=True,
    ),
    Column("born_host", pa.string(), "the producer, a.b.c.d:port or [v6]:port", repeats=True),
    Column("store_time", TIME, "the broker's clock at the append; null likewise", nullable=True),
    Column("store_host", pa.string(), "the broker, a.b.c.d:port or [v6]:port", repeats=True),
    Column("reconsume_times", pa.int32(), "how often consumers gave it back"),
    Column("prepared_transaction_offset", pa.int64(), "of a commit, byte offset of its half message; else 0"),
    Column("body_crc", pa.int32(), "CRC-32 & 0x7FFFFFFF of the stored body, as stored in the record"),
    Column("crc", pa.string(), "ok, or bad where the stored body does not match body_crc", repeats=True),
    Column("properties", pa.map_(pa.string(), pa.string()), "all properties by name"),
    Column("body_size_bytes", pa.int32(), "length of the stored body, bytes"),
    Column("body", pa.binary(), "the body, decompressed"),
    Column("body_decoded", pa.bool_(), "false where the body could not be decompressed and body is as stored (L012)"),
    Column("stored_body", pa.binary(), "the body as stored, only where it is compressed; else null", nullable=True),
    Column("tags_code", pa.int64(), "hash of the tags, as queue entries have it; 0 without any"),
    Column("record_version", pa.int32(), "1, or 2 for the form of records that long topics have"),
)

QUARANTINE_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store"),
    Column("phy_offset", pa.int64(), "byte offset in the log where the range begins"),
    Column("size_bytes", pa.int64(), "its length, bytes"),
    Column("kind", pa.string(), "damage, zeros, stale, hole or unreadable"),
    Column(
        "reason",
        pa.string(),
        "why it is damage or unreadable; null for zeros, stale records and holes, of which the kind says all",
        nullable=True,
    ),
    Column("finding", pa.string(), "code of the finding that explains it (rmqctl explain CODE)"),
)

MESSAGES: Final = pa.schema([column.field for column in MESSAGE_COLUMNS])
QUARANTINE: Final = pa.schema([column.field for column in QUARANTINE_COLUMNS])

_WORD: Final = pa.dictionary(pa.int32(), pa.string())


def _written(column: Column) -> pa.Field:
    kind = pa.map_(_WORD, pa.string()) if pa.types.is_map(column.type) else _WORD if column.repeats else column.type
    return column.field.with_type(kind)


# The messages for Parquet's writer: columns that it would encode as dictionaries are dictionaries already. Files are the same.
WRITTEN: Final = pa.schema([_written(column) for column in MESSAGE_COLUMNS])

# Columns with a dictionary page, by path inside a Parquet file.
DICTIONARY_PATHS: Final = [
    *(column.name for column in MESSAGE_COLUMNS if column.repeats),
    "properties.key_value.key",
]

# Columns whose minimum and maximum of a row group and of a page help readers, and columns with bloom filters.
_NESTED: Final = {"properties": ("key_value.key", "key_value.value"), "keys": ("list.element",)}
STATISTICS_PATHS: Final = [
    column.name for column in MESSAGE_COLUMNS if column.name not in (*_NESTED, "body", "stored_body")
]
NO_STATISTICS_PATHS: Final = [
    *(f"{name}.{below}" for name, paths in _NESTED.items() for below in paths),
    "body",
    "stored_body",
]
BLOOM_PATHS: Final = ["unique_key", "offset_msg_id", "keys.list.element"]
