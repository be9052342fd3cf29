"""Follow the chain of frames in a segment, and check that it leads to a place that was read before.

After a crash a broker cuts its log and writes on, but leaves old bytes after what it writes. So whole records may
still be stored at their old places and be part of the log no more: a blank covers them, or they come after the tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from store_core.errors import UnreadableError
from store_core.export.dest.state import Proof
from store_core.export.splits.tail import last_begun, proof_of
from store_core.kernel.codes import FrameKind
from store_core.scan.frames import FrameTable, Ints
from store_core.scan.log import ScanOptions, scan_segment
from store_core.scan.tail import has_entry
from store_core.storage.sequence import Segment
from store_core.storage.store import Store

HEADS: Final = ScanOptions(check_crc=False, properties=False, runs=True)
FRAMES: Final = ScanOptions(check_crc=False, properties=False)
NEAR_BYTES: Final = 64 << 10  # the range in which records are searched first
_MOST_LOOKED_UP: Final = 64
_MOST_DAMAGE: Final = 64


def chained_end(store: Store, segment: Segment, certain: int, stop: int) -> int | None:
    """Return the end of the last frame that starts in [certain, stop) of a segment; None where damage follows it."""
    end: int | None = certain
    for table in scan_segment(store, segment, HEADS, certain, stop, chained=True):
        end = int(table.phy_offset[-1] + table.size_bytes[-1]) if is_frame(table)[-1] else None
    return end


def is_in_its_queue(store: Store, proof: Proof) -> bool:
    """Return True if a message has its entry in a queue."""
    segment = store.log.find(proof.phy_offset)
    if segment is None:
        return False
    tables = scan_segment(store, segment, FRAMES, proof.phy_offset, proof.phy_offset + 1, chained=True)
    return any(bool(len(table)) and bool(table.messages[0]) and has_entry(store, table, 0) for table in tables)


def is_led_to(store: Store, phy_offset: int) -> bool:
    """Return True if the chain of frames in a segment leads to an offset.

    The chain may cross damage and unreadable ranges. In the segment at work it must not cross damage after which
    everything was left by a cut.
    """
    segment = store.log.find(phy_offset)
    if segment is None:
        return False
    is_at_work = segment.phy_offset == last_begun(store.log)
    end: int | None = segment.phy_offset
    damage: deque[int] = deque(maxlen=_MOST_DAMAGE)  # the remnants of a cut follow it closely
    try:
        for table in scan_segment(store, segment, HEADS, segment.phy_offset, phy_offset, chained=True):
            frames = is_frame(table)
            damage.extend(table.phy_offset[~frames].tolist())
            end = int(table.phy_offset[-1] + table.size_bytes[-1]) if frames[-1] else None
        return end in (None, phy_offset) and not (
            is_at_work and any(_is_remnant_of_cut(store, segment, at) for at in damage)
        )
    except UnreadableError:
        return True


def has_known_message(store: Store, segment: Segment, at: int) -> bool:
    """Return True if a queue has an entry for one of the next messages after an offset."""
    return any(has_entry(store, table, row) for table, row in _next_messages(store, segment, at))


def _is_remnant_of_cut(store: Store, segment: Segment, at: int) -> bool:
    """Return True if a queue has the last message before an offset, but no queue has the next ones.

    At least one of the next messages must have a queue. Queues that are missing, or lack the message before, prove
    nothing.
    """
    before = last_message(store, segment, max(segment.phy_offset, at - NEAR_BYTES), at)
    if before is None or not is_in_its_queue(store, before):
        return False
    has_queue = False
    for table, row in _next_messages(store, segment, at):
        queue = store.queue_alone(table.topic(row).decode("utf-8", "replace"), int(table.queue_id[row]))
        if queue is not None and queue.segments:
            has_queue = True
            if has_entry(store, table, row):
                return False
    return has_queue


def last_message(store: Store, segment: Segment, certain: int, end: int) -> Proof | None:
    """Return the last message that ends at or before an offset, or None.

    Frames start at ``certain``; else the scan searches for the first one.
    """
    found: tuple[Proof, ...] = ()
    for table in scan_segment(store, segment, FRAMES, certain, end):
        messages = np.flatnonzero(table.messages & (table.phy_offset + table.size_bytes <= end))
        found = proof_of(table, messages[-1:], found) if len(messages) else found
    return found[0] if found else None


def _next_messages(store: Store, segment: Segment, at: int) -> Iterator[tuple[FrameTable, int]]:
    room = _MOST_LOOKED_UP
    options = replace(FRAMES, window_size_bytes=NEAR_BYTES)
    for table in scan_segment(store, segment, options, at, chained=True):
        rows = np.flatnonzero(table.messages)[:room].tolist()
        yield from ((table, row) for row in rows)
        room -= len(rows)
        if not room:
            return


def is_frame(table: FrameTable) -> Ints:
    """Return a mask of the rows that are messages or blanks."""
    return np.isin(table.kind, (FrameKind.MESSAGE, FrameKind.BLANK))
