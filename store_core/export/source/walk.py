"""The walk of a reader of the source: the frames of a split, exactly those that a walk over the whole segment finds.

Nobody compares a reader's frames with its neighbours' afterwards, as an export does, and no bytes around a border prove
where the frames lie: a body may hold records, and a blank far in front may cover everything. So a reader follows the chain from
a place that is certain, its segment's start or where a stream's last batch ended. It takes no column and no checksum from
what lies in front of its split, which makes that a small part of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from store_core.errors import FailedError, UsageError
from store_core.export.splits.chain import chained_end
from store_core.export.splits.plan import Split, segments_of
from store_core.export.tables.gone import refuse_cut
from store_core.scan.frames import FrameTable, select
from store_core.scan.log import ScanOptions, nominal_end, scan_segment
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

_MOST_SPLITS: Final = 1 << 17  # tasks of one query; Spark's driver holds each of them
_SMALL_SPLIT_BYTES: Final = 64 << 10  # nobody means more than some of these: 64 is 64m without its m
_MOST_SMALL_SPLITS: Final = 1000
FULL: Final = ScanOptions(check_crc=True, check_property_crc=True, properties=False)


@dataclass(frozen=True, slots=True)
class SourceSplit:
    """[start, stop) of a log, in bytes; a frame starts at ``certain``, or would, and it is not behind ``start``."""

    certain_phy_offset: int
    start_phy_offset: int
    stop_phy_offset: int


def plan(log: SegmentSequence, start: int, stop: int | None, size_bytes: int, certain: int = 0) -> list[SourceSplit]:
    """Splits of about ``size_bytes`` that cover [start, stop) of the log, in log order, from directory listings alone.
    Raises UsageError where they would be too many for anybody.

    ``certain``: where frames are known to start, besides at the segments' starts; not behind ``start``.
    """
    splits: list[SourceSplit] = []
    most = _MOST_SMALL_SPLITS if size_bytes < _SMALL_SPLIT_BYTES else _MOST_SPLITS
    room = 0  # of the last split, for more whole segments
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
        if len(splits) + count > most:
            raise UsageError(f"splits of {size_bytes} bytes are too many", to_do="give a larger splitSize, such as 64m")
        borders = [first + (last - first) * i // count for i in range(count + 1)]
        at = max(segment.phy_offset, certain)
        splits += [SourceSplit(at, a, b) for a, b in pairwise(borders)]
        room = size_bytes - (last - first)
    return splits


def tables_of(
    store: Store, split: SourceSplit, *, may_be_gone: bool = False, may_be_short: bool = True
) -> Iterator[FrameTable]:
    """The messages with their first byte in a split, with what lies around them; a table is valid until the next one is
    asked for. Raises FailedError where a segment cannot be read, or unless it ``may_be_gone`` is not there any more or was cut; or unless it
    ``may_be_short`` lacks its end though others follow it."""
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
    if at is None:  # damage goes over the border: where it ends depends on what it began with
        at = certain
    if at < stop:
        yield from scan_segment(store, segment, FULL, at, stop, chained=True)
