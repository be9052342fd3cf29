"""Append to the log: a record's place, the blank that closes a segment, the next segment (store behaviour 4.3, 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from store_core.codec.record import encode_blank
from store_core.engine.files import LiveFiles
from store_core.layout import paths, record
from store_core.storage.store import Store


class LogWriter:
    """The growing end of a log. ``folders`` are those for new segments."""

    def __init__(self, store: Store, files: LiveFiles, end_phy_offset: int, folders: Sequence[Path]) -> None:
        self._files = files
        self._folders = sorted(folders)
        self._existing = {segment.phy_offset: segment.path for segment in store.log.segments}
        self._unsynced: dict[str, None] = {}
        self.end_phy_offset = end_phy_offset
        self.segment_size_bytes = store.log.file_size_bytes or paths.DEFAULT_SEGMENT_SIZE_BYTES

    @property
    def largest_record_bytes(self) -> int:
        """The size of the largest record that fits into a segment with a blank after it."""
        return self.segment_size_bytes - record.MIN_BLANK_SIZE_BYTES

    def make_room(self, size_bytes: int) -> int:
        """Return the place for a record of this size; close the segment and make the next one if it does not fit.

        The next segment is made first, so that every blank has a segment after it. Raises OSError.
        """
        available = self.segment_size_bytes - self.end_phy_offset % self.segment_size_bytes
        if size_bytes + record.MIN_BLANK_SIZE_BYTES <= available:
            self._segment(self.end_phy_offset)
            return self.end_phy_offset
        following = self.end_phy_offset + available
        self._segment(following)
        self._write(self.end_phy_offset, encode_blank(available))
        self.end_phy_offset = following
        return following

    def write(self, phy_offset: int, data: bytes) -> None:
        """Write a whole record at the place from ``make_room``. Raises OSError."""
        self._write(phy_offset, data)
        self.end_phy_offset = phy_offset + len(data)

    def sync(self) -> None:
        """Make all written bytes durable, a closing blank before the next segment."""
        for path in self._unsynced:
            self._files.sync_file(path)
        self._unsynced.clear()

    def _write(self, phy_offset: int, data: bytes) -> None:
        path = self._segment(phy_offset)
        self._files.write(path, phy_offset % self.segment_size_bytes, data)
        self._unsynced[path] = None

    def _segment(self, phy_offset: int) -> str:
        """Return the path of the segment that holds an offset; make it if it does not exist."""
        start = phy_offset - phy_offset % self.segment_size_bytes
        path = self._existing.get(start)
        if path is None:
            path = self._folder_for(start) / paths.segment_name(start)
            self._files.make_file(self._files.writer.places.name(path), self.segment_size_bytes)
            self._existing[start] = path
        return self._files.writer.places.name(path)

    def _folder_for(self, start: int) -> Path:
        """Return the log folder for a segment: brokers use several folders in turn (store format 1.2)."""
        return self._folders[start // self.segment_size_bytes % len(self._folders)]
