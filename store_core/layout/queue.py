"""Define queue files: entries of 20 and 46 bytes, fillers, and ConsumeQueueExt units (store format, section 6)."""

from __future__ import annotations

from typing import Final

from store_core.layout.schema import Field, Layout

ENTRY: Final = Layout(
    "queue entry",
    (
        Field("phy_offset", "i8", "record's start in the log; 0 is valid"),
        Field("size_bytes", "i4", "whole record; 0 marks the end of the queue"),
        Field("tags_code", "i8", "hash of the tag, delivery time of a delayed message, or an ext address"),
    ),
)
BATCH_ENTRY: Final = Layout(
    "batch queue entry",
    (
        Field("phy_offset", "i8", "record's start in the log"),
        Field("size_bytes", "i4", "whole record"),
        Field("tags_code", "i8", "hash of the tag"),
        Field("store_timestamp_ms", "i8", "store time"),
        Field("queue_offset", "i8", "first queue offset of the batch"),
        Field("batch_size", "i2", "1 for an ordinary message"),
        Field("compacted_offset", "i4", "-1"),
        Field("reserved", "i4", "0"),
    ),
)
EXT_UNIT: Final = Layout(
    "ConsumeQueueExt unit head",
    (
        Field("size_bytes", "i2", "head and bitmap; below 1: no unit"),
        Field("tags_code", "i8", "the real tag hash"),
        Field("store_timestamp_ms", "i8", "store time"),
        Field("bitmap_length", "i2", "below 1: none"),
    ),
)
EXT_END_OF_FILE: Final = -1  # an i2 in place of a unit's size: nothing more in this file
EXT_END_BLANK_SIZE_BYTES: Final = 4  # a unit must leave so many bytes after it

# Filler ("pre-blank") entries precede the first entry of a queue that does not start at its file's start (6.3).
FILLER_PHY_OFFSET: Final = 0
FILLER_SIZE_BYTES: Final = 0x7FFFFFFF
FILLER_TAGS_CODE: Final = 0
# A dead entry replaces an entry whose message is lost: it points one byte before a segment, is unreadable, and is skipped alone
# (behaviour 8, 15.1).
DEAD_ENTRY_SIZE_BYTES: Final = 100

# Tag codes at or below this are addresses into ConsumeQueueExt: real offset + Long.MIN_VALUE (6.5).
EXT_MAX_ADDRESS: Final = -2147483649
EXT_ADDRESS_BASE: Final = -(1 << 63)

DEFAULT_FILE_SIZE_BYTES: Final = 300_000 * ENTRY.size_bytes
DEFAULT_BATCH_FILE_SIZE_BYTES: Final = 300_000 * BATCH_ENTRY.size_bytes
DEFAULT_EXT_FILE_SIZE_BYTES: Final = 48 << 20


def is_ext_address(tags_code: int) -> bool:
    """Return True if a tag code is the address of a ConsumeQueueExt unit."""
    return tags_code <= EXT_MAX_ADDRESS


def ext_offset(tags_code: int) -> int:
    """Return the unit's byte offset in the ext file sequence."""
    return tags_code - EXT_ADDRESS_BASE


def rounded_file_size_bytes(configured: int) -> int:
    """Return a configured queue file size as the broker uses it: rounded up to whole entries."""
    return -(-configured // ENTRY.size_bytes) * ENTRY.size_bytes
