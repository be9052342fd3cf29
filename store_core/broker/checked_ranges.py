"""Keep which ranges of the log a start found sane, so that other releases skip them.

A record is plain if every release accepts it, whatever it checks: it is whole, its checksum is right, it lies at its own
physical offset, its format is the first, and its hosts are IPv4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import record
from store_core.storage.buffers import Buffers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from store_core.broker.record_check import CheckRules
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment

_V6_HOSTS = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6
_Key = tuple[int, bool, bool]  # segment, checksums checked, formats checked


@dataclass(slots=True)
class CheckedRanges:
    """The ends of plain records, window by window from a segment's start, of a log that does not change meanwhile."""

    buffers: Buffers = field(default_factory=Buffers)  # that the walk over a segment leaves to the next walk
    _ends: dict[_Key, list[int]] = field(default_factory=dict)

    def add(self, segment: Segment, table: FrameTable, *, check_crc: bool) -> None:
        """Add the plain rows at the start of a table from a walk with or without checksums."""
        is_plain = table.own_phy_offset == table.phy_offset
        if not table.is_good:
            is_plain &= (table.kind == int(FrameKind.MESSAGE)) & (table.code == int(FrameCode.OK))
        self._extend((segment.phy_offset, check_crc, False), table, is_plain)
        is_plain &= (table.magic == record.MAGIC_V1) & ((table.sys_flag & _V6_HOSTS) == 0)
        self._extend((segment.phy_offset, check_crc, True), table, is_plain)

    def add_run(self, segment: Segment, start: int, end: int, *, check_crc: bool) -> None:
        """Add plain records [start, end) whose formats are not checked."""
        ends = self._ends.setdefault((segment.phy_offset, check_crc, False), [segment.phy_offset])
        if start == ends[-1] < end:
            ends.append(end)

    def _extend(self, key: _Key, table: FrameTable, is_plain: NDArray[np.bool_]) -> None:
        """Extend the known range by the plain rows of ``table`` if they follow it."""
        count = len(is_plain) if is_plain.all() else int(is_plain.argmin())
        ends = self._ends.setdefault(key, [key[0]])
        if count and int(table.phy_offset[0]) == ends[-1]:
            ends.append(int(table.phy_offset[count - 1] + table.size_bytes[count - 1]))

    def passed(self, segment: Segment, at: int, limit: int, check: CheckRules) -> Iterator[int]:
        """Yield ``end``."""
        yield self.end(segment, at, limit, check)

    def end(self, segment: Segment, at: int, limit: int, check: CheckRules) -> int:
        """Return the offset up to which a walk from ``at`` may skip, at most ``limit``; ``at`` if nothing is known."""
        if check.verify_property_crc or at != segment.phy_offset:
            return at
        formats = not (check.reads_v2 and check.reads_v6_hosts)
        keys = ((segment.phy_offset, crc, old) for crc in {check.check_crc, True} for old in {formats, True})
        return max((_last(self._ends.get(key, []), limit, at) for key in keys), default=at)


def _last(ends: list[int], limit: int, at: int) -> int:
    place = bisect_right(ends, limit)
    return max(ends[place - 1], at) if place else at
