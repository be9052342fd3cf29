"""Define index files: header, hash slots, entries (store format, section 7)."""

from __future__ import annotations

from typing import Final

from store_core.layout.schema import Field, Layout

HEADER: Final = Layout(
    "index header",
    (
        Field("begin_timestamp_ms", "i8", "store time of the first entry"),
        Field("end_timestamp_ms", "i8", "store time of the last entry"),
        Field("begin_phy_offset", "i8", "first indexed record"),
        Field("end_phy_offset", "i8", "last indexed record"),
        Field("used_slots", "i4", "slots that ever became non-zero, not the capacity"),
        Field("index_count", "i4", "next free entry number, from 1; 0 or less counts as 1"),
    ),
)
SLOT: Final = Layout("index slot", (Field("entry", "i4", "newest entry of the chain; 0: empty"),))
ENTRY: Final = Layout(
    "index entry",
    (
        Field("key_hash", "i4", "never negative"),
        Field("phy_offset", "i8", "record's start in the log"),
        Field("seconds", "i4", "whole seconds since the header's first time"),
        Field("previous", "i4", "previous entry of the chain; 0: end"),
    ),
)
NO_ENTRY: Final = 0  # entry 0 is never used
DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ENTRIES: Final = 20_000_000
SLOTS_TO_ENTRIES: Final = 4  # the default proportion, from which both follow for a file's length
KEY_SEPARATOR: Final = "#"
TAG_MARK: Final = "#T#"  # 5.4.0 indexes tags under topic + this + tag


def file_size_bytes(slots: int, entries: int) -> int:
    """Return the length of an index file with this many slots and entry places (place 0 included)."""
    return HEADER.size_bytes + slots * SLOT.size_bytes + entries * ENTRY.size_bytes


def slot_at(slot: int) -> int:
    """Return the file offset of a slot."""
    return HEADER.size_bytes + slot * SLOT.size_bytes


def entry_at(slots: int, entry: int) -> int:
    """Return the file offset of an entry."""
    return HEADER.size_bytes + slots * SLOT.size_bytes + entry * ENTRY.size_bytes
