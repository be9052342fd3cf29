"""Represent queue entries as values and count good entries, without numpy (store format, section 6)."""

from __future__ import annotations

from typing import Final, NamedTuple

from store_core.kernel import compiled_kernel
from store_core.layout.queue import (
    BATCH_ENTRY,
    DEAD_ENTRY_SIZE_BYTES,
    ENTRY,
    FILLER_PHY_OFFSET,
    FILLER_SIZE_BYTES,
    FILLER_TAGS_CODE,
)
from store_core.layout.schema import Layout
from store_core.storage.live_start import Begin

_compiled: Final = compiled_kernel()


class Entry(NamedTuple):
    """An entry of a queue. ``tags_code`` is a hash, a delivery time in ms, or an address into ConsumeQueueExt."""

    queue_offset: int
    phy_offset: int
    size_bytes: int
    tags_code: int

    @property
    def batch_size(self) -> int:
        return 1


class BatchEntry(NamedTuple):
    """An entry of a batch queue: ``batch_size`` messages from ``queue_offset`` on, stored at ``store_timestamp_ms``."""

    queue_offset: int
    phy_offset: int
    size_bytes: int
    tags_code: int
    store_timestamp_ms: int
    batch_size: int


class ExtUnit(NamedTuple):
    """A message's unit in ConsumeQueueExt (6.5)."""

    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes


def is_filler(entry: Entry | BatchEntry) -> bool:
    """Return True if a broker wrote this entry only to fill the start of a queue's file (6.3)."""
    return (entry.phy_offset, entry.size_bytes, entry.tags_code) == (
        FILLER_PHY_OFFSET,
        FILLER_SIZE_BYTES,
        FILLER_TAGS_CODE,
    )


def is_dead(entry: Entry | BatchEntry, segment_size_bytes: int) -> bool:
    """Return True if rmqctl wrote this entry to skip a lost message: it points one byte before a segment."""
    at_end = segment_size_bytes > 0 and (entry.phy_offset + 1) % segment_size_bytes == 0
    return at_end and entry.size_bytes == DEAD_ENTRY_SIZE_BYTES and entry.tags_code == 0


def has_expired(entry: Entry | BatchEntry, log: Begin) -> bool:
    """Return True if the log no longer has the entry's record: brokers remove a segment before the queue files that point to it."""
    return entry.phy_offset >= 0 and entry.size_bytes > 0 and log.has_passed(entry.phy_offset + 1)


_NEGATIVE: Final = 0x80  # the sign bit of a number's first byte
_POSITIVE_FIELDS: Final = {ENTRY: ("size_bytes",), BATCH_ENTRY: ("size_bytes", "batch_size")}
_NOT_NEGATIVE_FIELDS: Final = {ENTRY: ("phy_offset",), BATCH_ENTRY: ("phy_offset", "queue_offset")}


def good_entries(buffer: bytes, layout: Layout) -> int:
    """Return how many whole entries at the start of the buffer a broker accepts as good (store behaviour, section 2).

    Good: offset >= 0 and size > 0; in batch queues also first queue offset >= 0 and batch size > 0. The kernel counts ordinary entries where it was
    built, because three full files have about a million.
    """
    if layout is ENTRY and _compiled is not None:
        good: int = _compiled.good_entries(buffer)
        return good
    return _good_entries(buffer, layout)


def _good_entries(buffer: bytes, layout: Layout) -> int:
    """Count good entries by columns of bytes, without a loop over entries."""
    step = layout.size_bytes
    count = len(buffer) // step
    buffer = buffer[: count * step]
    good = count
    for name in (*_NOT_NEGATIVE_FIELDS[layout], *_POSITIVE_FIELDS[layout]):
        signs = buffer[layout.offset_of(name) :: step][:good]
        if not signs.isascii():  # the quickest way to look for a sign bit
            good = next(i for i, byte in enumerate(signs) if byte >= _NEGATIVE)
    for name in _POSITIVE_FIELDS[layout]:
        good = _first_zero(buffer, layout, name, good)
    return good


def _first_zero(buffer: bytes, layout: Layout, name: str, count: int) -> int:
    """Return the number of the first entry whose field is 0; ``count`` if there is none before it."""
    bits = 0
    for at in range(layout.offset_of(name), layout.end_of(name)):
        bits |= int.from_bytes(buffer[at :: layout.size_bytes][:count])
    place = bits.to_bytes(count).find(0)
    return count if place < 0 else place
