"""Plan splits of a log that tasks can walk at the same time, from directory listings alone.

A record belongs to the split that holds its first byte. A split is whole segments, or a range inside one segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from store_core.export.dest.layout import Layout
from store_core.export.dest.state import Proof
from store_core.export.dest.task_destination import Place
from store_core.layout.record import MAX_RECORD_SIZE_BYTES
from store_core.read.log import LogFilter
from store_core.scan.log import nominal_end
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.settings import Settings

if TYPE_CHECKING:
    from store_core.export.splits.split_task import Piece

SPLIT_SIZE_BYTES: Final = 256 << 20
EXPORT_ANEW: Final = "export it again with --overwrite, or to another place"
# A walk that starts this far before an offset has met a frame's end before it, unless there is none.
_RUN_UP_BYTES: Final = MAX_RECORD_SIZE_BYTES + (1 << 20)


@dataclass(frozen=True, slots=True)
class Split:
    """The range [start, stop) of a log. ``exact``: a frame starts at ``start``, or would; else the walk searches for
    one.
    """

    start_phy_offset: int
    stop_phy_offset: int
    exact: bool

    @property
    def size_bytes(self) -> int:
        return self.stop_phy_offset - self.start_phy_offset


@dataclass(frozen=True, slots=True)
class Task:
    """The data that a worker needs to export one split; goes between processes and machines.

    * ``stem`` starts its file names; ``place`` is where they are written.
    * ``live``: a broker may be writing to the log.
    * ``landmarks``: records by which another machine recognises the log.
    * ``led``: the range from its segment's start to the message that was exported last. Frames must still lead there
      before anything after it is exported.
    """

    store: str
    stem: str
    settings: Settings
    split: Split
    wanted: LogFilter
    place: Place
    layout: Layout = field(default_factory=Layout)
    live: bool = False
    landmarks: tuple[Proof, ...] = ()
    led: Split | None = None

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes + (self.led.size_bytes if self.led is not None else 0)

    def run(self) -> Piece:
        """Do the task in this process. Raises StoreError."""
        from store_core.export.splits.split_task import run_task  # it knows tasks

        return run_task(self)


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Adjacent splits of one segment, or of several whole ones. ``hole``: offset and size of missing bytes before
    them.
    """

    end_phy_offset: int
    splits: tuple[Split, ...]
    hole: tuple[int, int] | None = None


def plan_splits(
    log: SegmentSequence,
    start: int,
    stop: int | None,
    size_bytes: int = SPLIT_SIZE_BYTES,
    *,
    is_proven: bool = False,
) -> list[SegmentPlan]:
    """Plan splits of about ``size_bytes`` that cover the records with their first byte in [start, stop), in log
    order.

    Unless a frame is proven to end at ``start`` (``is_proven``), the first split of a segment starts some way before
    it, to find a frame. The caller drops the frames before ``start``.
    """
    plans: list[SegmentPlan] = []
    packed: list[Segment] = []
    end = log.min_phy_offset
    for segment in log.segments:
        hole = _clipped(end, segment.phy_offset, start, stop)
        if packed and (hole or _span(packed, log) + _length(log, segment) > size_bytes):
            plans.append(_whole(packed, log, stop))
            packed = []
        if hole:
            plans.append(SegmentPlan(segment.phy_offset, (), hole))
        end = max(end, nominal_end(log, segment))
        if end <= start or (stop is not None and max(segment.phy_offset, start) >= stop):
            continue
        if segment.phy_offset < start or _length(log, segment) > size_bytes:
            if packed:
                plans.append(_whole(packed, log, stop))
                packed = []
            plans.append(_cut(segment, end, start, stop, size_bytes, is_proven))
        else:
            packed.append(segment)
    if packed:
        plans.append(_whole(packed, log, stop))
    return plans


def segments_of(log: SegmentSequence, split: Split) -> Iterator[tuple[Segment, int]]:
    """Yield the segments that a split touches, each with its end."""
    segments = log.segments
    place = max(bisect_right(segments, split.start_phy_offset, key=lambda segment: segment.phy_offset) - 1, 0)
    while place < len(segments) and segments[place].phy_offset < split.stop_phy_offset:
        end = nominal_end(log, segments[place])
        if end > split.start_phy_offset:
            yield segments[place], end
        place += 1


def _clipped(start: int, end: int, first: int, stop: int | None) -> tuple[int, int] | None:
    start, end = max(start, first), end if stop is None else min(end, stop)
    return (start, end - start) if start < end else None


def _length(log: SegmentSequence, segment: Segment) -> int:
    return nominal_end(log, segment) - segment.phy_offset


def _span(packed: Sequence[Segment], log: SegmentSequence) -> int:
    return nominal_end(log, packed[-1]) - packed[0].phy_offset


def _whole(packed: Sequence[Segment], log: SegmentSequence, stop: int | None) -> SegmentPlan:
    end = nominal_end(log, packed[-1])
    end = end if stop is None else min(end, stop)
    return SegmentPlan(end, (Split(packed[0].phy_offset, end, exact=True),))


def _cut(segment: Segment, end: int, start: int, stop: int | None, size_bytes: int, is_proven: bool) -> SegmentPlan:
    end = end if stop is None else min(end, stop)
    run_up_start = max(segment.phy_offset, start if is_proven else start - _RUN_UP_BYTES)
    count = max(1, -(-(end - max(run_up_start, start)) // size_bytes))
    bounds = [
        run_up_start,
        *(max(run_up_start, start) + (end - max(run_up_start, start)) * i // count for i in range(1, count)),
        end,
    ]
    # The first split starts where its segment does, or only serves to find a frame before ``start``.
    exact = {segment.phy_offset, *((start,) if is_proven else ())}
    return SegmentPlan(end, tuple(Split(a, b, exact=a in exact) for a, b in pairwise(bounds)))
