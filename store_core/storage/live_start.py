"""Find the current start of a sequence: a broker removes the oldest segments, also while rmqctl reads them."""

from __future__ import annotations

from pathlib import Path

from store_core.storage.remote_path import is_there
from store_core.storage.sequence import SegmentSequence


class Begin:
    """The current start of a sequence, which may have moved since the files were listed. Fixed for views and object stores.

    Brokers leave the newest file, and files in each folder of a log in several: if a folder has none left, a disk is missing,
    and the start stays.
    """

    def __init__(self, files: SegmentSequence) -> None:
        self._files = files

    @property
    def phy_offset(self) -> int:
        """Offset of the first byte that still exists. Costs a look at one file, unless that is gone."""
        if self._files.segments and not is_there(self._files.segments[0].path):
            relisted = self._files.relisted()
            self._files = relisted if _folders(relisted) == _folders(self._files) else self._files
        return self._files.min_phy_offset

    def has_passed(self, end_phy_offset: int) -> bool:
        """Return True if all bytes before an offset are gone."""
        return end_phy_offset <= self._files.min_phy_offset or end_phy_offset <= self.phy_offset


def _folders(files: SegmentSequence) -> set[Path]:
    return {segment.path.parent for segment in files.segments}
