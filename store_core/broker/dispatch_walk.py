"""A walk over one segment whose records are dispatched: what starts before have made of parts of it is taken from there."""

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
    """Which parts of a segment need not be read: behind ``behind``, where nothing else is asked of records than ``rules`` do.

    Where these ask for checksums, ``proven`` has to tell that somebody has looked at them.
    """

    dispatcher: Dispatcher
    segment: Segment
    rules: WalkRules
    limit: int
    behind: int
    knows_delays: bool
    proven: CheckedRanges | None

    def begins(self, at: int) -> bool:
        """Whether one begins at an offset."""
        known = self.dispatcher.known
        stretch = known.at(at) if known is not None and self.behind < at else None
        return stretch is not None and stretch.end <= self._limit

    def dispatch(self, at: int) -> int:
        """Dispatch those from an offset on; where they end, ``at`` if there is none."""
        if not self.begins(at):
            return at
        return self.dispatcher.dispatch_known(at, self._limit, self.rules.check, knows_delays=self.knows_delays)

    @property
    def _limit(self) -> int:
        if not self.rules.check.check_crc:
            return self.limit
        return min(self.limit, self.proven.checked_end(self.segment)) if self.proven is not None else -1


class DispatchWalk:
    """Iterates over tables as ``SegmentWalk``, from ``at`` on; of records that were dispatched here, as one row.

    Each table has to be dispatched before the next one is asked for. ``walk`` is the last walk, which tells why it ended.
    """

    def __init__(self, walk_from: WalkFrom, known: KnownParts, at: int) -> None:
        self._walk_from = walk_from
        self._known = known
        self._at = at
        self.walk = walk_from(at)

    def __iter__(self) -> Iterator[FrameTable]:
        at: int | None = self._at
        while at is not None:
            begin, at = at, self._known.dispatch(at)
            if at > begin:
                yield plain_row(begin, at - begin)
            self.walk = self._walk_from(at)
            at = yield from self._up_to_known()

    def _up_to_known(self) -> Generator[FrameTable, None, int | None]:
        """The walk's tables; returns where something is known again, None at the walk's end."""
        for table in self.walk:
            yield table
            if self._known.begins(table.end_phy_offset):
                return table.end_phy_offset
        return None
