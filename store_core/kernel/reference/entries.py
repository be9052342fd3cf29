"""Summarize queue entries, in readable Python (compiled: src/entries.rs). See ``entries``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_core.kernel.entries import hashes
from store_core.layout import queue

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


def good_run(entries: Bytes, width: int, below: int, highest: int, room: int) -> tuple[int, int, list[int]]:
    """Return the run up to the first implausible entry."""
    offsets, sizes = _columns(entries, width)
    good = (offsets >= 0) & (offsets.astype(np.uint64) < np.uint64(below)) & (sizes > 0)
    count = len(good) if good.all() else int(np.argmin(good))
    if not count:
        return 0, highest, []
    offsets = offsets[:count]
    peaks = np.maximum.accumulate(np.maximum(offsets, highest))
    return count, int(peaks[-1]), np.flatnonzero(offsets < peaks)[:room].tolist()


def chain_sums(
    entries: Bytes, width: int, starts: Ints, ends: Ints, most_bytes: int
) -> tuple[NDArray[np.uint64], Ints, Ints]:
    """Return the sums, one segment at a time."""
    offsets, sizes = _columns(entries, width)
    real = (sizes > 0) & (sizes <= most_bytes)
    offsets, sizes = offsets[real], sizes[real]
    sums = np.zeros(len(starts), np.uint64)
    counts, last = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    place = np.searchsorted(starts, offsets, "right") - 1
    for number, end in enumerate(ends.tolist()):
        in_segment = (place == number) & (offsets < end)
        record_starts, record_ends = offsets[in_segment], offsets[in_segment] + sizes[in_segment]
        sums[number:][:1] = hashes(record_starts).sum(keepdims=True) - hashes(record_ends).sum(keepdims=True)
        counts[number] = len(record_starts)
        last[number] = record_ends.max(initial=0)
    return sums, counts, last


def _columns(entries: Bytes, width: int) -> tuple[Ints, Ints]:
    layout: Any = queue.ENTRY if width == queue.ENTRY.size_bytes else queue.BATCH_ENTRY
    rows = entries[: len(entries) // width * width].view(layout.dtype)
    return rows["phy_offset"].astype(np.int64), rows["size_bytes"].astype(np.int64)
