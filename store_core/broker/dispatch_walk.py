"""Walk one segment whose records are dispatched, and reuse the rows that earlier starts dispatched from parts of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store_core.broker.walk import SegmentWalk, plain_row

if TYPE_CHECKING:
    from store_core.broker.checked_ranges import CheckedRanges
    from store_core.broker.dispatch import Dispatcher
    from store_core.broker.walk import WalkRules
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment

WalkFrom = Callable[[int], SegmentWalk]


@dataclass(frozen=True, slots=True)
class KnownParts:
    """The parts of a segment that need no reading: at offsets after ``behind``, where ``rules`` are the only checks.

    If ``rules`` check checksums, ``proven`` must have them as checked.
    """

    dispatcher: Dispatcher
    segment: Segment
    rules: WalkRules
    limit: int
    behind: int
    knows_delays: bool
    proven: CheckedRanges | None

    def begins(self, at: int) -> bool:
        """Return True if a range of already dispatched records starts at ``at``."""
        known = self.dispatcher.known
        stretch = known.at(at) if known is not None and self.behind < at else None
        return stretch is not None and stretch.end <= self._limit

    def dispatch(self, at: int) -> int:
        """Dispatch the known ranges from ``at`` on and return their end; ``at`` if there is none."""
        if not self.begins(at):
            return at
        return self.dispatcher.dispatch_known(at, self._limit, self.rules.check, knows_delays=self.knows_delays)

    @property
    def _limit(self) -> int:
        if not self.rules.check.check_crc:
            return self.limit
        return min(self.limit, self.proven.checked_end(self.segment)) if self.proven is not None else -1


class DispatchWalk:
    """Iterates over tables as ``SegmentWalk``, from ``at`` on; known records, dispatched here, come as one row.

    The caller must dispatch each table before it takes the next. ``walk`` is the last walk, which has the reason of its end.
    """

    def __init__(self, walk_from: WalkFrom, known: KnownParts, at: int) -> None:
        self._walk_from = walk_from
        self._known = known
        self._at = at
        self.walk = walk_from(at)

    def __iter__(self) -> Iterator[FrameTable]:
        at: int | None = self._at
        while at is not None:
            start, at = at, self._known.dispatch(at)
            if at > start:
                yield plain_row(start, at - start)
            self.walk = self._walk_from(at)
            at = yield from self._up_to_known()

    def _up_to_known(self) -> Generator[FrameTable, None, int | None]:
        """Yield the walk's tables; return the offset at which the next known range starts, or None at the walk's end."""
        for table in self.walk:
            yield table
            if self._known.begins(table.end_phy_offset):
                return table.end_phy_offset
        return None
