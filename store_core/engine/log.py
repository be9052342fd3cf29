"""Append to the log: a record's place, the blank that closes a segment, the next segment (store behaviour 4.3, 4.4)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from store_core.codec.record import encode_blank
from store_core.engine.files import LiveFiles
from store_core.layout import paths, record
from store_core.storage.store import Store


class LogWriter:
    """The growing end of a log. ``folders`` are those for new segments. Only one thread at a time may append."""

    def __init__(self, store: Store, files: LiveFiles, end_phy_offset: int, folders: Sequence[Path]) -> None:
        self._files = files
        self._folders = sorted(folders)
        name = files.writer.places.name
        self._existing = {segment.phy_offset: name(segment.path) for segment in store.log.segments}
        self._made_ahead: list[int] = []
        self._making = threading.Lock()
        self._unsynced: dict[str, None] = {}
        self._sync_failed: OSError | None = None
        self.end_phy_offset = end_phy_offset
        self.segment_size_bytes = store.log.file_size_bytes or paths.DEFAULT_SEGMENT_SIZE_BYTES

    @property
    def largest_record_bytes(self) -> int:
        """The size of the largest record that fits into a segment with a blank after it."""
        return self.segment_size_bytes - record.MIN_BLANK_SIZE_BYTES

    @property
    def room_bytes(self) -> int:
        """The rest of the newest segment."""
        return self.segment_size_bytes - self.end_phy_offset % self.segment_size_bytes

    def make_room(self, size_bytes: int) -> int:
        """Return the place for a record of this size; close the segment and make the next one if it does not fit.

        The next segment is made first, so that every blank has a segment after it. Raises OSError.
        """
        available = self.room_bytes
        if size_bytes + record.MIN_BLANK_SIZE_BYTES <= available:
            self._segment(self.end_phy_offset)
            return self.end_phy_offset
        following = self.end_phy_offset + available
        self._segment(following)
        self._write(self.end_phy_offset, encode_blank(available))
        self.end_phy_offset = following
        return following

    def write(self, phy_offset: int, data: bytes | memoryview) -> None:
        """Write whole records at the place from ``make_room``. Raises OSError."""
        self._write(phy_offset, data)
        self.end_phy_offset = phy_offset + len(data)

    def sync(self) -> int:
        """Make all written records durable, a closing blank before the next segment; return the end of what is durable.

        Raises OSError, also after an earlier call that failed: the system does not report lost bytes twice.
        """
        if self._sync_failed is not None:
            raise self._sync_failed
        end = self.end_phy_offset
        try:
            for path in list(self._unsynced):
                self._unsynced.pop(path, None)
                self._files.sync_file(path, data_only=True)
        except OSError as error:
            self._sync_failed = error
            raise
        return end

    def make_ahead(self) -> None:
        """Make the segment after the newest, so that no put waits for it. Raises OSError."""
        following = self.end_phy_offset + self.room_bytes
        if following - self.segment_size_bytes not in self._existing or following in self._existing:
            return
        self._segment(following, reserved=True)
        self._made_ahead.append(following)

    def remove_unused(self) -> None:
        """Remove segments that were made ahead and have no record. Raises OSError."""
        for start in self._made_ahead:
            if start >= self.end_phy_offset:
                self._files.remove(self._existing.pop(start))
        self._made_ahead.clear()

    def _write(self, phy_offset: int, data: bytes | memoryview) -> None:
        path = self._segment(phy_offset)
        self._files.write(path, phy_offset % self.segment_size_bytes, data)
        self._unsynced[path] = None  # only now, before the end moves: a sync that runs meanwhile may miss these bytes

    def _segment(self, phy_offset: int, *, reserved: bool = False) -> str:
        """Return the path of the segment that holds an offset; make it if it does not exist."""
        start = phy_offset - phy_offset % self.segment_size_bytes
        path = self._existing.get(start)
        return path if path is not None else self._make_segment(start, reserved)

    def _make_segment(self, start: int, reserved: bool) -> str:
        with self._making:
            if start not in self._existing:
                path = self._files.writer.places.name(self._folder_for(start) / paths.segment_name(start))
                self._files.make_file(path, self.segment_size_bytes, reserved=reserved)
                self._existing[start] = path
            return self._existing[start]

    def _folder_for(self, start: int) -> Path:
        """Return the log folder for a segment: brokers use several folders in turn (store format 1.2)."""
        return self._folders[start // self.segment_size_bytes % len(self._folders)]
