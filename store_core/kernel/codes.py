"""Define the values of the kernel's columns: kinds, codes, states, flags, and the property names it knows.

The Rust crate has the same numbers in src/layout.rs; a test compares the two.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

from store_core.layout import paths, record


class FrameKind(IntEnum):
    """The kind of a range of the log."""

    MESSAGE = 0  # a record
    BLANK = 1  # the end mark of a segment, up to the segment's end
    DAMAGE = 2  # bytes that are no frame
    ZEROS = 3  # never written, or wiped
    STALE = 4  # whole records that belong to an earlier place of the log; consecutive ones are one row
    HOLE = 5  # no segment; the scan makes these rows, not the kernel


class FrameCode(IntEnum):
    """The fault of a frame, or the reason why a range is no frame."""

    OK = 0
    # messages
    BAD_CRC = 1  # the body does not match its checksum
    OWN_OFFSET = 2  # the record's own offset is another place
    BAD_PROPERTY_CRC = 3  # the property CRC tail exists and is wrong
    BAD_NUMBER = 4  # a property that a broker's record check reads as a number is none
    # damage
    MAGIC = 16  # there is no magic where a frame should start
    SIZE = 17  # the size is too small, too large, or exceeds the segment
    LENGTH_MISMATCH = 18  # the parts' lengths do not add up to the size
    BLANK_SIZE = 19  # a blank that does not end at the segment's end
    RECORD_IMPLAUSIBLE = 20  # well formed, but neither its checksum nor its own offset is right
    RESIDUE = 21  # bytes after zeros or stale records that are no frame


class HoleCode(IntEnum):
    """The reason for a hole; these numbers are no ``FrameCode``, and only the scan's own rows have them."""

    NO_FILE = 0
    NO_PERMISSION = 64  # the file exists, and rmqctl has no permission to read it
    IO_ERROR = 65  # the file exists, and the disk or the file system fails


class ScanState(IntEnum):
    """The frame or range that ends at a window's start; passed as ``state`` and returned as ``next_state``."""

    CHAINED = 0  # a good frame, or the segment starts here
    IN_DAMAGE = 1
    IN_ZEROS = 2
    IN_STALE = 3
    IN_BAD_BLANK = 4  # damage after a blank of wrong size: zeros in it are no rows of their own


class ScanFlag(IntFlag):
    """The checks and derived values of a pass besides the frames."""

    CHECK_CRC = 1  # body checksums
    INDEX_KEYS = 2  # hashes of UNIQ_KEY and KEYS
    CHECK_PROPERTY_CRC = 4  # the property CRC tail
    INDEX_TAGS = 8  # hashes of TAGS as 5.4.0 indexes them, after each record's keys
    NO_PROPERTIES = 16  # leave tags_code, delay_level, property_flags and key hashes empty
    RUNS = 32  # consecutive good messages are one row, with zeros after its size_bytes
    CHECK_NUMBERS = 64  # properties that a record check reads as numbers, or that releases read differently


class PropertyFlag(IntFlag):
    """The properties of a record that matter to a store (store format, section 4.1)."""

    KEYS = 1
    UNIQ_KEY = 2
    TAGS = 4
    DELAY = 8
    INNER_MULTI_DISPATCH = 16
    INNER_NUM = 32
    DUP_INFO = 64
    CRC32 = 128
    TRAN_MSG = 256
    PARTED_VALUE = 512  # not a property: see ``codec.properties.has_parted_value``


class ArrowPart(IntFlag):
    """The variable parts of a record that ``arrow_columns`` can return."""

    IDS = 1  # offset message ids
    HOSTS = 2  # born and store host as text
    KEYS = 4  # UNIQ_KEY, TAGS and the keys in KEYS
    PROPERTIES = 8  # all properties
    BODIES = 16  # bodies as stored
    MARKS = 32  # the tag's hash, and whether the record is a tombstone


class TextKind(IntEnum):
    """The kind of values in a column of ``kernel.text``, which decides how they are written."""

    SAME = 0  # one value for all rows
    READY = 1  # values that the caller has converted to text of the format
    INT = 2
    UINT = 3
    FLOAT = 4
    BOOL = 5
    STRING = 6
    BYTES = 7  # written as a string, with U+FFFD for bytes that are not UTF-8
    BODY = 8  # a string where it is UTF-8, else base64
    ENCODING = 9  # utf-8 or base64 of a body
    LIST = 10  # of strings
    MAP = 11  # from strings to strings
    MICROSECONDS = 12  # since 1970, in UTC
    NANOSECONDS = 13
    ZONELESS_MICROSECONDS = 14
    ZONELESS_NANOSECONDS = 15


class EncodeRefusal(IntEnum):
    """The reason why a message has no record, in the order of the checks."""

    NOT = 0
    SEPARATOR = 1  # a property holds a character that would change how the property string is read
    TOPIC = 2  # the topic is too long for its length field
    PROPERTIES = 3  # the property string is too long
    BODY = 4  # the body is longer than the caller allows
    RECORD = 5  # the whole record is


_NOT_BY_NAME: Final = (PropertyFlag.CRC32, PropertyFlag.PARTED_VALUE)
PROPERTY_NAMES: Final = {
    **{flag.name.encode(): flag for flag in PropertyFlag if flag.name is not None and flag not in _NOT_BY_NAME},
    record.PROPERTY_CRC_NAME: PropertyFlag.CRC32,
}
SCHEDULE_TOPIC: Final = paths.SCHEDULE_TOPIC.encode()

KEY_SEPARATOR: Final = b" "  # between the keys of one KEYS property

# At least so many zero bytes in damage are a row of their own.
ZERO_RUN_BYTES: Final = 512
# Fewer zeros where a frame should start are damage: a prefix of size 0 and magic 0 is all zero.
ZERO_FRAME_BYTES: Final = record.PREFIX.size_bytes
# The longest head, which is everything before a record's body.
LONGEST_HEAD_BYTES: Final = record.body_at(record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6)
# Records of a queue are read together if the gaps between them are at most this long,
NEIGHBOUR_GAP_BYTES: Final = 4096
# and all together are at most this long.
READ_AT_ONCE_BYTES: Final = 256 << 10
# A column with more different texts is not collected as words.
MOST_WORDS: Final = 1 << 16
# In damage a window of this length always lets the walk advance.
RESYNC_BYTES: Final = 2 * ZERO_RUN_BYTES
