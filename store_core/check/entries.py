"""Recognise shapes of queue entries, many at once (store format 6; store behaviour 15.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.layout import queue
from store_core.storage.sequence import Segment, SegmentSequence

Array = NDArray[Any]
Mask = NDArray[np.bool_]
ENTRY_SIZE_BYTES: Final = queue.ENTRY.size_bytes
CHUNK_ENTRIES: Final = 1 << 15


def read_entries(files: SegmentSequence, first: int, end: int) -> Array:
    """Return entries [first, end) of an ordinary queue, zeros where there is no file. The caller must not change
    them.
    """
    at, size = first, max(end - first, 0) * ENTRY_SIZE_BYTES
    data = files.read(first * ENTRY_SIZE_BYTES, size)
    if len(data) == size:
        return np.frombuffer(data, queue.ENTRY.dtype)
    found = np.zeros(max(end - first, 0), queue.ENTRY.dtype)
    while at < end:
        data = files.read(at * ENTRY_SIZE_BYTES, (end - at) * ENTRY_SIZE_BYTES)
        whole = len(data) // ENTRY_SIZE_BYTES
        if whole:
            found[at - first : at - first + whole] = np.frombuffer(data, queue.ENTRY.dtype, whole)
            at += whole
            continue
        # A file may start inside an entry, so the number is rounded up, and the loop always advances.
        later_starts = (
            -(-segment.phy_offset // ENTRY_SIZE_BYTES)
            for segment in files.segments
            if segment.phy_offset > at * ENTRY_SIZE_BYTES
        )
        at = next(later_starts, end)
    return found


def filled_end(files: SegmentSequence) -> int:
    """Return the number after the last whole place that is not all zero."""
    for segment in reversed(files.segments):
        used = files.used_end(segment.phy_offset)
        if used > segment.phy_offset:
            return min(-(-used // ENTRY_SIZE_BYTES), segment.end_phy_offset // ENTRY_SIZE_BYTES)
    return files.min_phy_offset // ENTRY_SIZE_BYTES


def empty_files(files: SegmentSequence, end: int, entry_size_bytes: int = ENTRY_SIZE_BYTES) -> Iterator[Segment]:
    """Yield whole files of zeros that start at or after the place ``end``."""
    for segment in files.segments:
        is_behind = segment.phy_offset >= end * entry_size_bytes and segment.size_bytes == files.file_size_bytes
        if is_behind and files.used_end(segment.phy_offset) == segment.phy_offset:
            yield segment


def fillers(entries: Array) -> Mask:
    """Return a mask of the entries that a broker writes before a queue's first entry inside a file."""
    mask: Mask = (
        (entries["phy_offset"] == queue.FILLER_PHY_OFFSET)
        & (entries["size_bytes"] == queue.FILLER_SIZE_BYTES)
        & (entries["tags_code"] == queue.FILLER_TAGS_CODE)
    )
    return mask


def dead_entries(entries: Array, segment_size_bytes: int) -> Mask:
    """Return a mask of the entries that rmqctl writes for lost messages.

    Such an entry points one byte before a segment, with a size that reaches into it.
    """
    if not segment_size_bytes:
        return np.zeros(len(entries), bool)
    next_byte = entries["phy_offset"].astype(np.int64) + 1
    mask: Mask = (
        (entries["size_bytes"] == queue.DEAD_ENTRY_SIZE_BYTES)
        & (entries["tags_code"] == 0)
        & (next_byte > 0)
        & (next_byte % segment_size_bytes == 0)
    )
    return mask


def resolve_units(ext: SegmentSequence | None, tags_code: Array) -> tuple[Array, Array, Mask]:
    """Replace tags codes that are addresses into ConsumeQueueExt by the tags codes stored there.

    Returns:
        The tags codes; the store times of the units, ms, 0 without an address; and a mask of the addresses without a
            unit.
    """
    tags = tags_code.astype(np.int64)
    times = np.zeros(len(tags), np.int64)
    is_address = tags <= queue.EXT_MAX_ADDRESS
    bad = np.zeros(len(tags), bool)
    places = np.flatnonzero(is_address)
    if len(places):
        units, good = _read_units(ext, tags[places] - queue.EXT_ADDRESS_BASE)
        tags[places], times[places] = units["tags_code"], units["store_timestamp_ms"]
        bad[places] = ~good
    return tags, times, bad


def _read_units(ext: SegmentSequence | None, at: Array) -> tuple[Array, Mask]:
    """Return unit heads at byte offsets of the ext sequence, and a mask of those that are units."""
    size = queue.EXT_UNIT.size_bytes
    units = np.zeros(len(at), queue.EXT_UNIT.dtype)
    for number, position in enumerate(at.tolist()):
        data = ext.read(position, size) if ext is not None else b""
        if len(data) == size:
            units[number] = np.frombuffer(data, queue.EXT_UNIT.dtype)[0]
    return units, units["size_bytes"] == size + np.maximum(units["bitmap_length"], 0)
