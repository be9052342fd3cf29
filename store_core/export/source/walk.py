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

from store_core.errors import FailedError, UsageError
from store_core.export.splits.chain import chained_end
from store_core.export.splits.plan import Split, segments_of
from store_core.export.tables.table import refuse_cut
from store_core.scan.frames import FrameTable, select
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
