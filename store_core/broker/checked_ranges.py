"""What was found sane on the way, so that the start of another release need not read it again: stretches of the log, queue files.

Plain is a record that every release takes for one, whatever it checks: whole, its checksum right, where it says it lies, of
the first format, with hosts of version 4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import record
from store_core.storage.buffers import Buffers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from store_core.broker.dispatch_cache import DispatchedRows
    from store_core.broker.entry_runs import EntryRuns
    from store_core.broker.plain_records import WalkAhead
    from store_core.broker.record_check import CheckRules
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment

_V6_HOSTS = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6
_Key = tuple[int, bool, bool]  # segment, checksums looked at, formats looked at


@dataclass(slots=True)
class CheckedRanges:
    """Where plain records end, window by window, from a segment's start on. For one log that nobody changes meanwhile.

    ``ahead``: a thread that walks over segments meanwhile, with checksums. ``runs``: what the queue files hold. ``rows``:
    what was dispatched.
    """

    ahead: WalkAhead | None = None
    runs: EntryRuns | None = None
    rows: DispatchedRows | None = None
    buffers: Buffers = field(default_factory=Buffers)  # that the walk over one segment leaves to the next one's
    _ends: dict[_Key, list[int]] = field(default_factory=dict)

    def add(self, segment: Segment, table: FrameTable, *, check_crc: bool) -> None:
        """A table of the walk over a segment, with or without checksums: its plain rows up to the first other one."""
        is_plain = table.own_phy_offset == table.phy_offset
        if not table.is_good:
            is_plain &= (table.kind == int(FrameKind.MESSAGE)) & (table.code == int(FrameCode.OK))
        self._go_on((segment.phy_offset, check_crc, False), table, is_plain)
        is_plain &= (table.magic == record.MAGIC_V1) & ((table.sys_flag & _V6_HOSTS) == 0)
        self._go_on((segment.phy_offset, check_crc, True), table, is_plain)

    def add_run(self, segment: Segment, start: int, end: int, *, check_crc: bool) -> None:
        """Plain records [start, end) whose formats nobody has looked at."""
        ends = self._ends.setdefault((segment.phy_offset, check_crc, False), [segment.phy_offset])
        if start == ends[-1] < end:
            ends.append(end)

    def _go_on(self, key: _Key, table: FrameTable, is_plain: NDArray[np.bool_]) -> None:
        """What follows from what is known already counts."""
        count = len(is_plain) if is_plain.all() else int(is_plain.argmin())
        ends = self._ends.setdefault(key, [key[0]])
        if count and int(table.phy_offset[0]) == ends[-1]:
            ends.append(int(table.phy_offset[count - 1] + table.size_bytes[count - 1]))

    def checked_end(self, segment: Segment) -> int:
        """How far from a segment's start on checksums are known to be right."""
        return max(self._ends.get((segment.phy_offset, True, old), [-1])[-1] for old in (False, True))

    def expect(self, segments: Sequence[Segment]) -> None:
        """A scan will come to these."""
        if self.ahead is not None:
            self.ahead.want(segments)

    def passed(self, segment: Segment, at: int, limit: int, check: CheckRules) -> Iterator[int]:
        """As ``end``, again and again while a thread gets on in this segment."""
        start = segment.phy_offset
        if self.ahead is not None and at == start < limit and check.reads_v2 and check.reads_v6_hosts:
            for end in self.ahead.found(segment):
                self.add_run(segment, start, end, check_crc=True)
                start = end
                yield self.end(segment, at, limit, check)
                if end >= limit:
                    return
        yield self.end(segment, at, limit, check)

    def end(self, segment: Segment, at: int, limit: int, check: CheckRules) -> int:
        """How far a walk from ``at`` need not look, at most to ``limit``; ``at`` where nothing is known."""
        if check.verify_property_crc or at != segment.phy_offset:
            return at
        formats = not (check.reads_v2 and check.reads_v6_hosts)
        asked = ((segment.phy_offset, crc, old) for crc in {check.check_crc, True} for old in {formats, True})
        return max((_last(self._ends.get(key, []), limit, at) for key in asked), default=at)


def _last(ends: list[int], limit: int, at: int) -> int:
    place = bisect_right(ends, limit)
    return max(ends[place - 1], at) if place else at
