"""Walk over a segment's file, in readable Python: the definition of the compiled kernel's walk over a file.

Each window is a block, longer for a long record; a window's rows continue those of the window before.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.columns import Row
from store_core.kernel.file import Failure, FrameRow, Told
from store_core.kernel.reference.scan import Stop, Walk
from store_core.layout.record import MAX_RECORD_SIZE_BYTES
from store_core.storage.files import open_read_only

_MOST_ROWS = 4096  # a call returns after so many rows
_JOINED = (FrameKind.DAMAGE, FrameKind.ZEROS, FrameKind.STALE)


class FileReader:
    """See ``store_core.kernel.file``."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = open_read_only(path)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def read_into(self, window: memoryview, have: int, position: int) -> tuple[int, int]:
        """Fill the window as ``WindowScan.read_on`` does, without the walk."""
        if self._descriptor is None:
            raise ValueError("the file is closed")
        while have < len(window):
            try:
                count = os.preadv(self._descriptor, [window[have:]], position + have)
            except OSError as error:
                return have, error.errno or 0
            if not count:
                break
            have += count
        return have, 0


class FileWalk:
    """See ``store_core.kernel.file``."""

    def __init__(self, path: Path, phy_offset: int, readable_end: int, segment_end: int, block_bytes: int) -> None:
        if not 0 <= phy_offset <= min(readable_end, segment_end) or block_bytes <= 0:
            raise ValueError("the file's place in the log or its end makes no sense")
        self._start = phy_offset
        self._readable_end = min(readable_end, segment_end)
        self._segment_end = segment_end
        self._block_bytes = block_bytes
        self._descriptor: int | None = open_read_only(path)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def walk(self, at: int, to: int, state: int, flags: int, seconds: float, /) -> Told:
        if not self._start <= at <= self._segment_end or state not in list(ScanState) or self._descriptor is None:
            raise ValueError("the position in the file or the state makes no sense")
        to = min(to, self._segment_end)
        deadline = time.monotonic() + seconds
        rows: list[FrameRow] = []
        message_count = 0
        need_bytes = 0
        failure: Failure | None = None
        is_over = at >= to
        while not is_over:
            wanted = max(self._block_bytes, need_bytes)
            window, failure = self._read(at, wanted)
            stop, count = self._walk_window(window, at, to, ScanState(state), ScanFlag(flags), rows)
            is_over = not stop.at and (
                len(window) < wanted or wanted >= min(MAX_RECORD_SIZE_BYTES, self._segment_end - at)
            )
            need_bytes = max(stop.need_bytes, 0 if stop.at else 2 * wanted)
            need_bytes = min(need_bytes, MAX_RECORD_SIZE_BYTES, self._segment_end - at - stop.at)
            is_last = at + len(window) >= self._readable_end or len(window) < wanted
            zeros_begin = stop.state is ScanState.IN_ZEROS and state != ScanState.IN_ZEROS and not is_last
            at, state, message_count = at + stop.at, stop.state, message_count + count
            is_enough = len(rows) >= _MOST_ROWS or time.monotonic() >= deadline or zeros_begin
            if failure is not None or at >= to or (is_enough and stop.at):
                break
        return rows, message_count, at, int(state), is_over, failure

    def _read(self, phy_offset: int, size_bytes: int) -> tuple[bytes, Failure | None]:
        """Return bytes of the log, fewer where the file ends or cannot be read."""
        assert self._descriptor is not None
        at, data = phy_offset - self._start, b""
        size_bytes = max(min(size_bytes, self._readable_end - phy_offset), 0)
        while len(data) < size_bytes:
            try:
                part = os.pread(self._descriptor, size_bytes - len(data), at + len(data))
            except OSError as error:
                return data, (error.errno or 0, at + len(data), size_bytes - len(data))
            if not part:
                break
            data += part
        return data, None

    def _walk_window(
        self,
        window: bytes,
        phy_offset: int,
        to: int,
        state: ScanState,
        flags: ScanFlag,
        rows: list[FrameRow],
    ) -> tuple[Stop, int]:
        """Walk a window and append its rows to ``rows``; return where the walk stops, and the number of messages."""
        walk = Walk(window, phy_offset, self._segment_end, flags | ScanFlag.RUNS | ScanFlag.NO_PROPERTIES, to)
        stop = walk.stop(0, state)
        topics = list(walk.topic_ids)
        for values in walk.rows:
            row = Row(*values)
            topic = topics[row.topic_id] if row.topic_id >= 0 else b""
            queue = row.own_phy_offset, row.queue_id, row.queue_offset
            last = rows[-1] if rows else None
            if last is not None and _continues(last, row):
                rows[-1] = last._replace(size_bytes=last.size_bytes + row.size_bytes)
            else:
                rows.append(FrameRow(row.kind, row.code, row.phy_offset, row.size_bytes, *queue, topic))
        return stop, walk.message_count


def _continues(last: FrameRow, row: Row) -> bool:
    """Return True if a row continues the one before: a range of the same kind, or a run of good messages."""
    is_run = row.kind == FrameKind.MESSAGE and last.code == row.code == FrameCode.OK
    return last.kind == row.kind and (is_run or row.kind in _JOINED)
