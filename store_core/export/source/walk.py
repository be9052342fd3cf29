"""Walk the frames of a split for the source: exactly those that a walk over the whole segment finds.

No later step compares a reader's frames with its neighbours', as an export does, and the bytes around a border do not
prove where frames start: a body may hold records, and a blank far before may cover everything. So a reader follows
the chain from a certain place, its segment's start or the end of a stream's last batch. Before its split it reads no
column and no checksum, which makes that a small part of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from store_core.errors import FailedError, UsageError
from store_core.export.splits.chain import FRAMES, chained_end, is_frame
from store_core.export.splits.plan import Split, segments_of
from store_core.export.tables.table import refuse_cut
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.record import MAX_RECORD_SIZE_BYTES
from store_core.scan.frames import FrameTable, Ints, select
from store_core.scan.log import ScanOptions, nominal_end, scan_segment
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

_MOST_SPLITS: Final = 1 << 17  # tasks of one query; Spark's driver holds each of them
_SMALL_SPLIT_BYTES: Final = 64 << 10  # many smaller splits are a mistake, such as 64 for 64m
_MOST_SMALL_SPLITS: Final = 1000
FULL: Final = ScanOptions(check_crc=True, check_property_crc=True, properties=False)


@dataclass(frozen=True, slots=True)
class SourceSplit:
    """The range [start, stop) of a log, in bytes. A frame starts at ``certain``, or would; it is not after ``start``."""

    certain_phy_offset: int
    start_phy_offset: int
    stop_phy_offset: int


def plan(log: SegmentSequence, start: int, stop: int | None, size_bytes: int, certain: int = 0) -> list[SourceSplit]:
    """Plan splits of about ``size_bytes`` that cover [start, stop) of the log, from directory listings alone.

    The splits are in log order. ``certain``: an offset where a frame starts besides the segments' starts; not after
    ``start``. Raises UsageError for too many splits.
    """
    splits: list[SourceSplit] = []
    max_splits = _MOST_SMALL_SPLITS if size_bytes < _SMALL_SPLIT_BYTES else _MOST_SPLITS
    room = 0  # bytes of the last split that are free for more whole segments
    for segment in log.segments:
        first = max(segment.phy_offset, start)
        last = nominal_end(log, segment) if stop is None else min(nominal_end(log, segment), stop)
        if first >= last:
            continue
        if splits and last - first <= room and splits[-1].stop_phy_offset == first:
            splits[-1] = SourceSplit(splits[-1].certain_phy_offset, splits[-1].start_phy_offset, last)
            room -= last - first
            continue
        count = -(-(last - first) // size_bytes)
        if len(splits) + count > max_splits:
            raise UsageError(f"splits of {size_bytes} bytes are too many", to_do="give a larger splitSize, such as 64m")
        borders = [first + (last - first) * i // count for i in range(count + 1)]
        at = max(segment.phy_offset, certain)
        splits += [SourceSplit(at, a, b) for a, b in pairwise(borders)]
        room = size_bytes - (last - first)
    return splits


def tables_of(
    store: Store, split: SourceSplit, *, may_be_gone: bool = False, may_be_short: bool = True
) -> Iterator[FrameTable]:
    """Yield tables of the messages with their first byte in a split, and of the ranges around them.

    A table is valid until the next one is taken. Raises FailedError:

    * where a segment is unreadable;
    * where one is gone or was cut, unless ``may_be_gone``;
    * where one that others follow lacks its end, unless ``may_be_short``.
    """
    covered, log = split.start_phy_offset, store.log
    for segment, end in segments_of(log, Split(split.start_phy_offset, split.stop_phy_offset, exact=True)):
        first = max(segment.phy_offset, split.start_phy_offset)
        if first > covered and not may_be_gone:
            break
        certain = max(segment.phy_offset, split.certain_phy_offset)
        covered = min(end, split.stop_phy_offset)
        for table in _tables(store, segment, certain, first, covered):
            if not may_be_gone:
                refuse_cut(segment, table)
            if len(table) and table.phy_offset[-1] >= first:
                yield select(table, table.phy_offset >= first) if table.phy_offset[0] < first else table
        if not may_be_short and segment.end_phy_offset < covered and log.following(segment) is not None:
            covered = segment.end_phy_offset
            break
    if covered < split.stop_phy_offset and not may_be_gone:
        raise FailedError(
            "a segment went away before it was read",
            path=str(store.root),
            phy_offset=covered,
            to_do="run the query again; a broker removes what has expired",
        )


def _tables(store: Store, segment: Segment, certain: int, first: int, stop: int) -> Iterator[FrameTable]:
    at = chained_end(store, segment, certain, first) if certain < first else first
    if at is None:  # damage crosses the border: its end depends on its start
        at = certain
    if at < stop:
        yield from scan_segment(store, segment, FULL, at, stop, chained=True)


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
