"""What the kernel's columns hold: kinds, codes, states, flags, and the property names it knows.

The Rust crate writes the same numbers once, in src/layout.rs; a test compares the two.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

from store_core.layout import paths, record


class FrameKind(IntEnum):
    """What a stretch of the log holds."""

    MESSAGE = 0  # a record
    BLANK = 1  # the end mark of a segment, up to the segment's end
    DAMAGE = 2  # bytes that are no frame
    ZEROS = 3  # never written, or wiped
    STALE = 4  # whole records that belong to an earlier place of the log, one row for a run of them
    HOLE = 5  # no segment there; the scan makes these rows, never the kernel


class FrameCode(IntEnum):
    """What is wrong with a frame, or why a stretch is no frame."""

    OK = 0
    # messages
    BAD_CRC = 1  # the body does not match its checksum
    OWN_OFFSET = 2  # the record says it lies elsewhere
    BAD_PROPERTY_CRC = 3  # the property CRC tail is there and wrong
    BAD_NUMBER = 4  # a property that a broker's record check reads as a number is none
    # damage
    MAGIC = 16  # where a frame should start stands no magic
    SIZE = 17  # the size is too small, too large, or reaches beyond the segment
    LENGTH_MISMATCH = 18  # the parts' lengths do not add up to the size
    BLANK_SIZE = 19  # a blank that does not end at the segment's end
    RECORD_IMPLAUSIBLE = 20  # well formed, but neither its checksum nor its own offset is right
    RESIDUE = 21  # what follows zeros or stale records and is no frame


class HoleCode(IntEnum):
    """Why a hole is one: numbers that no ``FrameCode`` has, for the scan's own rows."""

    NO_FILE = 0
    NO_PERMISSION = 64  # there is a file, and the system does not let us read it
    IO_ERROR = 65  # there is a file, and the disk or the file system fails


class ScanState(IntEnum):
    """What ends where a window begins; goes in as ``state`` and comes out as ``next_state``."""

    CHAINED = 0  # a good frame, or the segment starts here
    IN_DAMAGE = 1
    IN_ZEROS = 2
    IN_STALE = 3
    IN_BAD_BLANK = 4  # damage behind a blank of wrong size: zeros in it are not told apart


class ScanFlag(IntFlag):
    """What the pass looks at besides the frames."""

    CHECK_CRC = 1  # body checksums
    INDEX_KEYS = 2  # hashes of UNIQ_KEY and KEYS
    CHECK_PROPERTY_CRC = 4  # the property CRC tail
    INDEX_TAGS = 8  # hashes of TAGS as 5.4.0 indexes them, behind each record's keys
    NO_PROPERTIES = 16  # leave tags_code, delay_level, property_flags and key hashes empty
    RUNS = 32  # good messages that follow each other come as one row, with nothing behind its size_bytes
    CHECK_NUMBERS = 64  # properties that a broker's record check reads as numbers; and what releases read in two ways


class PropertyFlag(IntFlag):
    """Which of the properties that matter to a store a record has (store format, section 4.1)."""

    KEYS = 1
    UNIQ_KEY = 2
    TAGS = 4
    DELAY = 8
    INNER_MULTI_DISPATCH = 16
    INNER_NUM = 32
    DUP_INFO = 64
    CRC32 = 128
    TRAN_MSG = 256
    PARTED_VALUE = 512  # none: see ``codec.properties.has_parted_value``


class ArrowPart(IntFlag):
    """Which of a record's variable parts ``arrow_columns`` is to give."""

    IDS = 1  # offset message ids
    HOSTS = 2  # born and store host as text
    KEYS = 4  # UNIQ_KEY, TAGS and the keys in KEYS
    PROPERTIES = 8  # all properties
    BODIES = 16  # bodies as stored
    MARKS = 32  # the tag's hash, and whether rmqctl left the record where a message was lost


class TextKind(IntEnum):
    """What a column of ``kernel.text`` holds, and so how its values look."""

    SAME = 0  # one value for all rows
    READY = 1  # values that the caller has made into text of the format
    INT = 2
    UINT = 3
    FLOAT = 4
    BOOL = 5
    STRING = 6
    BYTES = 7  # shown as a string; what is not UTF-8 has U+FFFD
    BODY = 8  # a string where it is UTF-8, else base64
    ENCODING = 9  # which of both a body is
    LIST = 10  # of strings
    MAP = 11  # from strings to strings
    MICROSECONDS = 12  # since 1970, in UTC
    NANOSECONDS = 13
    ZONELESS_MICROSECONDS = 14
    ZONELESS_NANOSECONDS = 15


_NOT_BY_NAME: Final = (PropertyFlag.CRC32, PropertyFlag.PARTED_VALUE)
PROPERTY_NAMES: Final = {
    **{flag.name.encode(): flag for flag in PropertyFlag if flag.name is not None and flag not in _NOT_BY_NAME},
    record.PROPERTY_CRC_NAME: PropertyFlag.CRC32,
}
SCHEDULE_TOPIC: Final = paths.SCHEDULE_TOPIC.encode()

KEY_SEPARATOR: Final = b" "  # between the keys of one KEYS property

# So many zero bytes in damage are a row of their own.
ZERO_RUN_BYTES: Final = 512
# Fewer zeros where a frame should start are damage: a prefix of size 0 and magic 0 is all zero.
ZERO_FRAME_BYTES: Final = record.PREFIX.size_bytes
# The longest head: all that stands in front of a record's body.
LONGEST_HEAD_BYTES: Final = record.body_at(record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6)
# Records that a queue points to are read together with what lies between them if that is no longer than this,
NEIGHBOUR_GAP_BYTES: Final = 4096
# and all of them are no longer than this.
READ_AT_ONCE_BYTES: Final = 256 << 10
# Texts of which there are more different ones in a column are not collected as words.
MOST_WORDS: Final = 1 << 16
# A window this long always decides something in damage.
RESYNC_BYTES: Final = 2 * ZERO_RUN_BYTES
