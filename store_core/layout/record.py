"""Define the commit log record, its blank, its sysFlag and its property CRC (store format, sections 2 to 4)."""

from __future__ import annotations

from typing import Final

from store_core.layout.schema import Field, Layout

MAGIC_V1: Final = -626843481  # 0xDAA320A7: the topic length is one byte
MAGIC_V2: Final = -626843477  # 0xDAA320AB: the topic length is two bytes (5.1.0 and later)
MAGIC_BLANK: Final = -875286124  # 0xCBD43194: no record follows in this segment
MAGICS: Final = {MAGIC_V1: "V1", MAGIC_V2: "V2", MAGIC_BLANK: "BLANK"}

PREFIX: Final = Layout(
    "record prefix",
    (
        Field("size_bytes", "i4", "whole record, this field included; for a blank, the rest of the segment"),
        Field("magic", "i4", "V1, V2 or BLANK"),
    ),
)

# The fixed part before the born host.
HEAD: Final = Layout(
    "record head",
    (
        *PREFIX.fields,
        Field("body_crc", "i4", "CRC-32 & 0x7FFFFFFF of the stored body; 0 when empty"),
        Field("queue_id", "i4", "queue number, from 0"),
        Field("flag", "i4", "the user's flag, opaque"),
        Field("queue_offset", "i8", "entry number in the queue; an inner batch's first one"),
        Field("own_phy_offset", "i8", "where the record says it lies in the log"),
        Field("sys_flag", "i4", "compression, transaction type, host lengths, batch bits"),
        Field("born_timestamp_ms", "i8", "producer's clock"),
    ),
)
HOST_PORT_SIZE_BYTES: Final = 4
HOST_V4_SIZE_BYTES: Final = 4 + HOST_PORT_SIZE_BYTES
HOST_V6_SIZE_BYTES: Final = 16 + HOST_PORT_SIZE_BYTES
# After the born host (8 or 20 bytes).
STORE_TIME: Final = Layout(
    "record store time", (Field("store_timestamp_ms", "i8", "broker's clock under the append lock"),)
)
# After the store host (8 or 20 bytes).
MIDDLE: Final = Layout(
    "record middle",
    (
        Field("reconsume_times", "i4", "retry count"),
        Field("prepared_transaction_offset", "i8", "a commit's half message in the log; else 0"),
        Field("body_length", "i4", "stored bytes, compressed or not; negative counts as 0"),
    ),
)
TOPIC_LENGTH_V1: Final = Layout("topic length of V1", (Field("topic_length", "i1", "signed"),))
TOPIC_LENGTH_V2: Final = Layout("topic length of V2", (Field("topic_length", "i2", "signed"),))
PROPERTIES_LENGTH: Final = Layout(
    "properties length", (Field("properties_length", "i2", "signed; 0 or less: no properties"),)
)

# Everything except hosts, body, topic and properties, for V1; V2 has one byte more.
FIXED_SIZE_BYTES: Final = (
    HEAD.size_bytes
    + STORE_TIME.size_bytes
    + MIDDLE.size_bytes
    + TOPIC_LENGTH_V1.size_bytes
    + PROPERTIES_LENGTH.size_bytes
)
MIN_RECORD_SIZE_BYTES: Final = FIXED_SIZE_BYTES + 2 * HOST_V4_SIZE_BYTES  # 91
WRITE_PAGE_BYTES: Final = 4096  # writeWithoutMmap: an append writes up to the next page, from a buffer with older bytes
MIN_BLANK_SIZE_BYTES: Final = PREFIX.size_bytes  # an append leaves so many bytes for the blank
# A larger size is taken for damage: a broker writes at most maxMessageSize (by default 4 MiB) + 64 KiB.
MAX_RECORD_SIZE_BYTES: Final = 32 << 20
DEFAULT_MAX_MESSAGE_SIZE_BYTES: Final = 4 << 20
RECORD_OVERHEAD_LIMIT_BYTES: Final = 64 << 10
MAX_PROPERTIES_SIZE_BYTES: Final = 32767
LONGEST_V1_TOPIC: Final = 127  # Java characters; longer topics make a V2 record
CRC_MASK: Final = 0x7FFFFFFF

# sysFlag (section 3)
FLAG_COMPRESSED: Final = 0x1
FLAG_MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
FLAG_BORN_HOST_V6: Final = 0x10
FLAG_STORE_HOST_V6: Final = 0x20
FLAG_NEED_UNWRAP: Final = 0x40
FLAG_INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_ZLIB_OLD: Final = 0x000
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

# Properties (section 4)
NAME_VALUE_SEPARATOR: Final = 0x01
PROPERTY_SEPARATOR: Final = 0x02

# The property CRC tail (section 2.6): the record's last 20 bytes, `__CRC32#` 0x01 ten digits 0x02.
PROPERTY_CRC: Final = Layout(
    "property CRC tail",
    (
        Field("name", "s8", "__CRC32#"),
        Field("separator", "i1", "0x01"),
        Field("digits", "s10", "ten decimal digits, least significant first"),
        Field("end", "i1", "0x02"),
    ),
)
PROPERTY_CRC_NAME: Final = b"__CRC32#"

# The head of one message inside a batch body (section 5.1), before that message's body.
BATCH_ITEM_HEAD: Final = Layout(
    "batch item head",
    (
        Field("size_bytes", "i4", "this item"),
        Field("magic", "i4", "0"),
        Field("body_crc", "i4", "0"),
        Field("flag", "i4", "the user's flag"),
        Field("body_length", "i4", ""),
    ),
)
BATCH_ITEM_PROPERTIES_LENGTH: Final = PROPERTIES_LENGTH


def host_size_bytes(is_v6: bool) -> int:
    """Return the length of a host field: address and port."""
    return HOST_V6_SIZE_BYTES if is_v6 else HOST_V4_SIZE_BYTES


def store_time_at(sys_flag: int) -> int:
    """Return the offset of the store timestamp in a record with this sysFlag."""
    return HEAD.size_bytes + host_size_bytes(bool(sys_flag & FLAG_BORN_HOST_V6))


def store_host_at(sys_flag: int) -> int:
    """Return the offset of the store host in a record with this sysFlag."""
    return store_time_at(sys_flag) + STORE_TIME.size_bytes


def middle_at(sys_flag: int) -> int:
    """Return the offset of the reconsume count in a record with this sysFlag."""
    return store_host_at(sys_flag) + host_size_bytes(bool(sys_flag & FLAG_STORE_HOST_V6))


def body_at(sys_flag: int) -> int:
    """Return the offset of the first body byte in a record with this sysFlag."""
    return middle_at(sys_flag) + MIDDLE.size_bytes


def topic_length_layout(magic: int) -> Layout:
    """Return the layout of the topic length: one byte in V1, two in V2."""
    return TOPIC_LENGTH_V2 if magic == MAGIC_V2 else TOPIC_LENGTH_V1


def record_size_bytes(magic: int, sys_flag: int, body_length: int, topic_length: int, properties_length: int) -> int:
    """Return the whole record's length by the formula of section 2.2; a negative body or property length counts as 0."""
    return (
        body_at(sys_flag)
        + max(body_length, 0)
        + topic_length_layout(magic).size_bytes
        + topic_length
        + PROPERTIES_LENGTH.size_bytes
        + max(properties_length, 0)
    )


def page_end(phy_offset: int) -> int:
    """Return the page boundary up to which a broker with writeWithoutMmap writes an append that ends at ``phy_offset``."""
    return -(-phy_offset // WRITE_PAGE_BYTES) * WRITE_PAGE_BYTES
