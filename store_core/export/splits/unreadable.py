"""What a split does where the system refuses to read a stretch of the log: it is walked around."""

from __future__ import annotations

from store_core.errors import UnreadableError
from store_core.export.dest.parts import Range
from store_core.scan.io_errors import refused_stretches
from store_core.scan.windows import Windows
from store_core.storage.sequence import Segment, SegmentSequence


def unreadable_stretches(
    log: SegmentSequence, segment: Segment, file: str, error: UnreadableError, stop: int
) -> list[Range]:
    """As ``refused_stretches``, as ranges of a segment's ``file``."""
    return [Range(*row[:4], file) for row in refused_stretches(log, segment, error, stop)]


class WindowsUpTo(Windows):
    """Windows over what lies in front of an offset, as if the file ended there."""

    def __init__(self, log: SegmentSequence, size_bytes: int, end_phy_offset: int) -> None:
        super().__init__(log, size_bytes)
        self._end_phy_offset = end_phy_offset

    def window(self, phy_offset: int, size_bytes: int) -> memoryview:
        """As ``Windows.window``."""
        return super().window(phy_offset, max(min(size_bytes, self._end_phy_offset - phy_offset), 0))
