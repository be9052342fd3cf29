"""Appending to the log: where a record goes, the blank that closes a segment, the next segment (store behaviour 4.3, 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from store_core.codec.record import encode_blank
from store_core.engine.files import LiveFiles
from store_core.layout import paths, record
from store_core.storage.store import Store


class LogWriter:
    """The growing end of a log. ``folders`` are those that new segments may go to."""

    def __init__(self, store: Store, files: LiveFiles, end_phy_offset: int, folders: Sequence[Path]) -> None:
        self._files = files
        self._folders = sorted(folders)
        self._standing = {segment.phy_offset: segment.path for segment in store.log.segments}
        self._unsynced: dict[str, None] = {}
        self.end_phy_offset = end_phy_offset
        self.segment_size_bytes = store.log.file_size_bytes or paths.DEFAULT_SEGMENT_SIZE_BYTES

    @property
    def largest_record_bytes(self) -> int:
        """A larger record fits into no segment, as its blank must fit behind it."""
        return self.segment_size_bytes - record.MIN_BLANK_SIZE_BYTES

    def make_room(self, size_bytes: int) -> int:
        """Where a record of this size goes; closes the segment and makes the next one where it does not fit.

        The next segment is made first, so that there is no blank without a segment behind it. Raises OSError.
        """
        left = self.segment_size_bytes - self.end_phy_offset % self.segment_size_bytes
        if size_bytes + record.MIN_BLANK_SIZE_BYTES <= left:
            self._segment(self.end_phy_offset)
            return self.end_phy_offset
        following = self.end_phy_offset + left
        self._segment(following)
        self._write(self.end_phy_offset, encode_blank(left))
        self.end_phy_offset = following
        return following

    def write(self, phy_offset: int, data: bytes) -> None:
        """Write a whole record at the place that ``make_room`` gave. Raises OSError."""
        self._write(phy_offset, data)
        self.end_phy_offset = phy_offset + len(data)

    def sync(self) -> None:
        """Make what was written durable, a closing blank before what follows it."""
        for path in self._unsynced:
            self._files.sync_file(path)
        self._unsynced.clear()

    def _write(self, phy_offset: int, data: bytes) -> None:
        path = self._segment(phy_offset)
        self._files.write(path, phy_offset % self.segment_size_bytes, data)
        self._unsynced[path] = None

    def _segment(self, phy_offset: int) -> str:
        """Path of the segment that holds an offset; made if it is not there."""
        start = phy_offset - phy_offset % self.segment_size_bytes
        path = self._standing.get(start)
        if path is None:
            path = self._folder_for(start) / paths.segment_name(start)
            self._files.make_file(self._files.writer.places.name(path), self.segment_size_bytes)
            self._standing[start] = path
        return self._files.writer.places.name(path)

    def _folder_for(self, start: int) -> Path:
        """With several log folders brokers take them in turn (store format 1.2)."""
        return self._folders[start // self.segment_size_bytes % len(self._folders)]
