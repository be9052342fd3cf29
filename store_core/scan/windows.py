"""Read windows of a segment and walk them: the one loop over the log, for tables of columns as for rows.

The kernel reads a local file itself, in parts that it walks while they are in the processor's cache; the system reads ahead meanwhile. Python reads
where a log shows other bytes than its file, and from object stores, whose slow requests a thread makes ahead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from store_core.errors import FailedError, UnreadableError
from store_core.kernel.codes import ScanState
from store_core.kernel.file import FileReader, open_reader
from store_core.layout.record import MAX_RECORD_SIZE_BYTES
from store_core.scan.pieces import skip_hole
from store_core.storage.buffers import Buffers
from store_core.storage.files import open_file, unreadable
from store_core.storage.remote_path import is_remote
from store_core.storage.sequence import Segment, SegmentSequence

if TYPE_CHECKING:
    from concurrent.futures import Future

    from store_core.kernel import WindowScan

REMOTE_WINDOW_SIZE_BYTES: Final = 16 << 20  # larger than others, because each request to an object store is slow
_MOST_CARRIED_BYTES: Final = 1 << 20  # a longer rest of a window is read again
_BEYOND_BYTES: Final = 64 << 10
_BEYOND_LARGE_BYTES: Final = 16 << 20  # so that not each of many heads that claim large records needs a read of its own


class Windows:
    """Windows of a segment in a single buffer. The rest of a full window is not read again.

    Args:
        kept: the caller uses the bytes; else windows that the kernel reads come empty.
        ahead_to: the end of the caller's part of a segment in an object store, up to which a thread reads ahead.
    """

    def __init__(
        self,
        log: SegmentSequence,
        segment: Segment,
        size_bytes: int,
        *,
        buffers: Buffers | None = None,
        kept: bool = True,
        ahead_to: int = 0,
    ) -> None:
        self._log = log
        self._segment = segment
        self._size_bytes = size_bytes
        self._kept = kept
        self._buffers = buffers or Buffers()
        self._buffer = self._buffers.take(size_bytes)  # takes no memory until it is filled
        self._filled = range(0)  # range of the log in the buffer, if the last window was full
        self._file: FileReader | None = None
        self._ahead: _ReadAhead | None = None
        try:
            if log.is_plain(segment):
                self._file = open_reader(segment.path)
            elif is_remote(segment.path) and segment.phy_offset + size_bytes < min(ahead_to, segment.end_phy_offset):
                self._ahead = _ReadAhead(segment, size_bytes, ahead_to, self._buffers)
        except FileNotFoundError:
            pass  # the file has been removed since it was listed: there are no bytes
        except OSError as error:
            raise unreadable(segment.path, error) from error

    @property
    def reads_file(self) -> bool:
        """True if the kernel reads the windows."""
        return self._file is not None

    def close(self) -> None:
        """Close the file, and give the buffer back; windows are no longer valid."""
        if self._file is not None:
            self._file.close()
        if self._ahead is not None:
            self._ahead.close()
        if len(self._buffer) == self._size_bytes:
            self._buffers.give_back(self._buffer)

    def window(self, phy_offset: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from an offset, fewer at the file's end; valid until the next window is taken.

        Raises FailedError if the file exists and cannot be read.
        """
        view, kept = self._place(phy_offset, size_bytes)
        readable = view[: self._readable_bytes(phy_offset, size_bytes)]
        if self._ahead is not None:
            kept += self._ahead.take_into(phy_offset + kept, readable[kept:])
        count = kept + (self._log.read_into(phy_offset + kept, readable[kept:]) if kept < len(readable) else 0)
        if self._ahead is not None and count == size_bytes:
            self._ahead.read_from(phy_offset + count)
        return self._filled_to(phy_offset, view, count)

    def walk(self, scan: WindowScan, phy_offset: int, size_bytes: int) -> tuple[memoryview, int, FailedError | None]:
        """Read a window and walk it by a scan that starts there.

        Returns:
            The window, its length in bytes, and the error if no more of it could be read.
        """
        if self._file is None:
            window, unread = self._readable_window(phy_offset, size_bytes)
            scan.go_on(window)
            return window, len(window), unread
        wanted = self._readable_bytes(phy_offset, size_bytes)
        position = phy_offset - self._segment.phy_offset
        if self._kept:
            view, kept = self._place(phy_offset, size_bytes)
            count, number = scan.read_on(self._file, view[:wanted], kept, position)
            window = self._filled_to(phy_offset, view, count)
        else:
            count, number = scan.read_through(self._file, wanted, position)
            window = memoryview(b"")
        if not number:
            return window, count, None
        error = OSError(number, os.strerror(number))
        return window, count, unreadable(self._segment.path, error, position + count, wanted - count)

    def _readable_window(self, phy_offset: int, size_bytes: int) -> tuple[memoryview, FailedError | None]:
        """Return a window, up to the first byte that cannot be read, and the error."""
        try:
            return self.window(phy_offset, size_bytes), None
        except UnreadableError as error:
            count = self._segment.phy_offset + error.at - phy_offset if error.path == str(self._segment.path) else 0
            return self.window(phy_offset, count) if 0 < count < size_bytes else memoryview(b""), error

    def _readable_bytes(self, phy_offset: int, size_bytes: int) -> int:
        return max(min(size_bytes, self._segment.end_phy_offset - phy_offset), 0)

    def _place(self, phy_offset: int, size_bytes: int) -> tuple[memoryview, int]:
        """Return the place of a window in the buffer, and how many of its bytes the buffer has already."""
        if size_bytes > len(self._buffer) or len(self._buffer) > self._size_bytes >= size_bytes:
            self._buffer = self._buffers.take(max(size_bytes, self._size_bytes))
            self._filled = range(0)
        view = memoryview(self._buffer)[:size_bytes]
        kept = self._keep_rest(phy_offset, size_bytes)
        self._filled = range(0)  # until it is known to be read
        return view, kept

    def _filled_to(self, phy_offset: int, view: memoryview, count: int) -> memoryview:
        """Return the first ``count`` bytes of a window, and remember them if the window is full."""
        self._filled = range(phy_offset, phy_offset + count) if count == len(view) else range(0)
        return view[:count]

    def _keep_rest(self, phy_offset: int, size_bytes: int) -> int:
        """Move the bytes of a window that are in the buffer to its start. Return their number."""
        filled = self._filled
        kept = filled.stop - phy_offset
        if phy_offset <= filled.start or not 0 < kept < min(size_bytes, _MOST_CARRIED_BYTES):
            return 0
        self._buffer.move(0, phy_offset - filled.start, kept)
        return kept


class _ReadAhead:
    """A thread that reads the bytes after a window of a file in an object store, while the caller uses the window."""

    def __init__(self, segment: Segment, size_bytes: int, until_phy_offset: int, buffers: Buffers) -> None:
        from concurrent.futures import ThreadPoolExecutor  # slow to load

        # The thread has its own connection, because the log's cache may close others meanwhile.
        self._file = open_file(segment.path)
        self._start = segment.phy_offset
        self._end = min(segment.end_phy_offset, until_phy_offset)
        self._buffers = buffers
        self._buffer = buffers.take(size_bytes)
        self._thread = ThreadPoolExecutor(1, "read-ahead")
        self._read: tuple[int, Future[int]] | None = None

    def close(self) -> None:
        """Wait for the thread, and give its buffer back."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()
        self._buffers.give_back(self._buffer)

    def read_from(self, phy_offset: int) -> None:
        """Have the thread read from an offset, as far as its buffer and the part reach."""
        if phy_offset < self._end:
            view = memoryview(self._buffer)[: self._end - phy_offset]
            self._read = phy_offset, self._thread.submit(self._file.read_into, phy_offset - self._start, view)

    def take_into(self, phy_offset: int, view: memoryview) -> int:
        """Copy bytes from an offset that the thread has read. Return their number."""
        read, self._read = self._read, None
        if read is None:
            return 0
        start, count = read[0], read[1].result()
        part = memoryview(self._buffer)[phy_offset - start : count][: len(view)] if start <= phy_offset else b""
        view[: len(part)] = part
        return len(part)


class Result(Protocol):
    """The frames of a window, as columns or as rows."""

    @property
    def next_at(self) -> int: ...

    @property
    def next_state(self) -> int: ...

    @property
    def need_bytes(self) -> int: ...


Found = TypeVar("Found", bound=Result)


class Walked(NamedTuple, Generic[Found]):
    """A window from ``phy_offset`` on, or a sparse hole of the file, of which nothing was ``found``.

    ``error``: the file could not be read after what was found.
    """

    phy_offset: int
    end_phy_offset: int
    found: Found | None
    window: memoryview = memoryview(b"")
    error: FailedError | None = None


class Span(NamedTuple):
    """Start, state and stop of a walk, the end of its segment, and the size of windows in bytes."""

    at: int
    state: int  # ScanState
    stop: int
    segment_end: int
    window_size_bytes: int

    @property
    def read_end(self) -> int:
        """The end of most windows: shortly after the walk's stop, for the record that starts before the stop."""
        return self.stop + _BEYOND_BYTES

    def window_at(self, at: int) -> int:
        """Return the size of the window at ``at`` in bytes."""
        return min(self.window_size_bytes, self.read_end - at)


def walk_windows(
    log: SegmentSequence,
    segment: Segment,
    windows: Windows,
    span: Span,
    open_scan: Callable[[int, int, int], WindowScan],
    take: Callable[[WindowScan], Found],
) -> Iterator[Walked[Found]]:
    """Walk a segment window by window, over its sparse holes. Yield each window with frames, up to the span's stop.

    ``open_scan`` returns a scan from an offset and a state, for a number of bytes; ``take`` its result. A caller that goes on after a window with an
    error gets the error raised.
    """
    at, state, wanted = span.at, span.state, span.window_at(span.at)
    may_be_hole = state == ScanState.CHAINED
    while at < span.stop:
        if may_be_hole and (skipped := skip_hole(log, segment, at)) > at:
            yield Walked(at, skipped, None)
            at, state, wanted = skipped, ScanState.IN_ZEROS, span.window_at(skipped)
            continue
        scan = open_scan(at, state, wanted)
        window, size, error = windows.walk(scan, at, wanted)
        found = take(scan)
        if found.next_at or error is not None:
            yield Walked(at, at + found.next_at, found, window, error)
        if error is not None:
            raise error
        if not found.next_at:
            left = span.segment_end - at
            if size < wanted or wanted >= min(MAX_RECORD_SIZE_BYTES, left):
                return  # the file ends here, or was cut or removed since it was listed: no further frame can be recognised
            wanted = min(max(found.need_bytes, 2 * wanted), MAX_RECORD_SIZE_BYTES)
            wanted = min(wanted + min(wanted, _BEYOND_LARGE_BYTES), left)
            may_be_hole = False
            continue
        at, state, wanted = at + found.next_at, found.next_state, span.window_at(at + found.next_at)
        may_be_hole = state == ScanState.IN_ZEROS
