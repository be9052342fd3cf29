"""Where frames begin and end in a segment, as whoever follows a log asks it."""

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
    """The first end of a frame at or behind ``wanted``; with ``at_most`` the last one that is not behind it, if there is one.
    None where there is neither."""
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
    """Whether a frame ends at an offset inside a segment, or one starts there, behind damage too."""
    certain = max(segment.phy_offset, phy_offset - MAX_RECORD_SIZE_BYTES)
    for table in scan_segment(store, segment, FRAMES, certain, phy_offset + 1):
        rows = is_frame(table)
        if phy_offset in table.phy_offset[rows] or phy_offset in (table.phy_offset + table.size_bytes)[rows]:
            return True
    return False


def first_frame(store: Store, segment: Segment, at: int) -> int | None:
    """Where the first frame at or behind an offset starts."""
    for table in scan_segment(store, segment, FRAMES, at, chained=True):
        frames = np.flatnonzero(is_frame(table))
        if len(frames):
            return int(table.phy_offset[frames[0]])
    return None


def is_whole(store: Store, segment: Segment, at: int) -> bool:
    """Whether the record at an offset is written to its end."""
    return not any(
        any(table.code != FrameCode.OK) or table.properties(0).endswith(b"\0")
        for table in scan_segment(store, segment, FULL, at, at + 1, chained=True)
    )


def chain(store: Store, segment: Segment, at: int, stop: int) -> tuple[Ints, Ints, bool, bool]:
    """Starts and ends of the frames that follow each other from ``at`` on and start in front of ``stop``; whether the last is a
    blank, and whether something else follows."""
    starts, ends, is_blank = [], [], False
    for table in scan_segment(store, segment, FRAMES, at, stop, chained=True):
        others = np.flatnonzero(~is_frame(table))
        count = int(others[0]) if len(others) else len(table)
        if count:
            starts.append(table.phy_offset[:count].astype(np.int64))
            ends.append(starts[-1] + table.size_bytes[:count])
            is_blank = bool(table.kind[count - 1] == FrameKind.BLANK)
        if len(others):
            return *_joined(starts, ends), is_blank, True
    return *_joined(starts, ends), is_blank, False


def _joined(starts: list[Ints], ends: list[Ints]) -> tuple[Ints, Ints]:
    empty = np.zeros(0, np.int64)
    return np.concatenate([empty, *starts]), np.concatenate([empty, *ends])
