"""Find starts and ends of frames in a segment, for the follower of a log."""

from __future__ import annotations

import numpy as np

from store_core.export.source.walk import FULL
from store_core.export.splits.chain import FRAMES, is_frame
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.record import MAX_RECORD_SIZE_BYTES
from store_core.scan.frames import Ints
from store_core.scan.log import scan_segment
from store_core.storage.sequence import Segment
from store_core.storage.store import Store


def boundary_from(store: Store, segment: Segment, certain: int, wanted: int, *, at_most: bool = False) -> int | None:
    """Return the first end of a frame at or after ``wanted``, or None.

    With ``at_most``: the last end of a frame at or before it; without one, the first after it.
    """
    before: int | None = None
    for table in scan_segment(store, segment, FRAMES, certain, chained=True):
        ends = (table.phy_offset + table.size_bytes)[is_frame(table)]
        place = int(np.searchsorted(ends, wanted))
        if at_most and place < len(ends) and ends[place] == wanted:
            return wanted
        if place:
            before = int(ends[place - 1])
        if place < len(ends):
            return before if at_most and before is not None else int(ends[place])
    return before if at_most else None


def ends_a_frame(store: Store, segment: Segment, phy_offset: int) -> bool:
    """Return True if a frame ends or starts at an offset inside a segment, also after damage."""
    certain = max(segment.phy_offset, phy_offset - MAX_RECORD_SIZE_BYTES)
    for table in scan_segment(store, segment, FRAMES, certain, phy_offset + 1):
        rows = is_frame(table)
        if phy_offset in table.phy_offset[rows] or phy_offset in (table.phy_offset + table.size_bytes)[rows]:
            return True
    return False


def first_frame(store: Store, segment: Segment, at: int) -> int | None:
    """Return the start of the first frame at or after an offset, or None."""
    for table in scan_segment(store, segment, FRAMES, at, chained=True):
        frames = np.flatnonzero(is_frame(table))
        if len(frames):
            return int(table.phy_offset[frames[0]])
    return None


def is_whole(store: Store, segment: Segment, at: int) -> bool:
    """Return True if the record at an offset is written to its end."""
    return not any(
        any(table.code != FrameCode.OK) or table.properties(0).endswith(b"\0")
        for table in scan_segment(store, segment, FULL, at, at + 1, chained=True)
    )


def chain(store: Store, segment: Segment, at: int, stop: int) -> tuple[Ints, Ints, bool, bool]:
    """Follow the frames that start in [at, stop), each at the end of the one before.

    Returns:
        Their starts, their ends, whether the last one is a blank, and whether something else follows.
    """
    starts, ends, is_blank = [], [], False
    for table in scan_segment(store, segment, FRAMES, at, stop, chained=True):
        other_rows = np.flatnonzero(~is_frame(table))
        count = int(other_rows[0]) if len(other_rows) else len(table)
        if count:
            starts.append(table.phy_offset[:count].astype(np.int64))
            ends.append(starts[-1] + table.size_bytes[:count])
            is_blank = bool(table.kind[count - 1] == FrameKind.BLANK)
        if len(other_rows):
            return *_joined(starts, ends), is_blank, True
    return *_joined(starts, ends), is_blank, False


def _joined(starts: list[Ints], ends: list[Ints]) -> tuple[Ints, Ints]:
    empty = np.zeros(0, np.int64)
    return np.concatenate([empty, *starts]), np.concatenate([empty, *ends])
