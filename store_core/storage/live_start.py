"""Where a sequence begins by now: a broker removes the oldest segments, also while somebody reads them."""

from __future__ import annotations

from pathlib import Path

from store_core.storage.remote_path import is_there
from store_core.storage.sequence import SegmentSequence


class Begin:
    """The begin of a sequence that may have moved on since it was listed; never that of a view or of files in an object store.

    Brokers leave the newest file, and of a log in several folders files in each: where nothing is left, a disk is away.
    """

    def __init__(self, files: SegmentSequence) -> None:
        self._now = files

    @property
    def phy_offset(self) -> int:
        """Offset of the first byte that is there now. Costs a look at one file, unless that has gone."""
        if self._now.segments and not is_there(self._now.segments[0].path):
            anew = self._now.relisted()
            self._now = anew if _folders(anew) == _folders(self._now) else self._now
        return self._now.min_phy_offset

    def has_passed(self, end_phy_offset: int) -> bool:
        """Whether everything in front of an offset has gone."""
        return end_phy_offset <= self._now.min_phy_offset or end_phy_offset <= self.phy_offset


def _folders(files: SegmentSequence) -> set[Path]:
    return {segment.path.parent for segment in files.segments}
