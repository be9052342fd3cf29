"""Read windows of a segment, the next one in a thread while the caller walks this one.

Reading costs about as much as walking, or more from a disk, so a walk takes only the time of the slower of both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from store_core.kernel.file import open_reader
from store_core.storage.buffers import Buffers
from store_core.storage.files import LocalFile, open_file, unreadable
from store_core.storage.remote_path import is_remote
from store_core.storage.sequence import Segment, SegmentSequence

if TYPE_CHECKING:
    from store_core.kernel import WindowScan
    from store_core.storage.object_store import RemoteFile

_MOST_CARRIED_BYTES: Final = 1 << 20  # a longer rest of a window is read again


class Windows:
    """Windows in a single buffer, read when the caller takes them. The rest of a full window is not read again."""

    most_extra_bytes = 0  # by which a window may be longer than requested

    def __init__(self, log: SegmentSequence, size_bytes: int, buffers: Buffers | None = None) -> None:
        self._log = log
        self._buffers = buffers or Buffers()
        self._buffer = self._buffers.take(size_bytes)
        self._size_bytes = size_bytes
        self._filled = range(0)  # range of the log in the buffer, if the last window was full

    def close(self) -> None:
        """Give the buffer back; windows are no longer valid."""
        if len(self._buffer) == self._size_bytes:
            self._buffers.give_back(self._buffer)

    def window(self, phy_offset: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from an offset, fewer at the file's end; valid until the next window is taken.

        Raises FailedError if the file exists and cannot be read.
        """
        view, kept = self._place(phy_offset, size_bytes)
        count = kept + self._log.read_into(phy_offset + kept, view[kept:])
        return self._filled_to(phy_offset, view, count)

    def walk(self, scan: WindowScan, phy_offset: int, size_bytes: int) -> tuple[memoryview, int]:
        """Read the same window and walk it by a scan that starts there. Return the window and its length in bytes."""
        window = self.window(phy_offset, size_bytes)
        scan.go_on(window)
        return window, len(window)

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
        segment = self._log.find(phy_offset)
        if segment is None or filled.stop >= segment.end_phy_offset:  # later bytes are another segment's
            return 0
        self._buffer.move(0, phy_offset - filled.start, kept)
        return kept


class FileWindows(Windows):
    """Windows over a local file that the kernel reads, in parts that it walks while they are in the processor's cache."""

    def __init__(self, log: SegmentSequence, segment: Segment, size_bytes: int) -> None:
        super().__init__(log, size_bytes)
        self._segment = segment
        self._file = open_reader(segment.path)

    def close(self) -> None:
        """Close the file, and give the buffer back."""
        self._file.close()
        super().close()

    def walk(self, scan: WindowScan, phy_offset: int, size_bytes: int) -> tuple[memoryview, int]:
        """Read and walk a window as ``Windows.walk`` does, up to the segment's end."""
        view, kept = self._place(phy_offset, size_bytes)
        readable = view[: self._readable_bytes(phy_offset, size_bytes)]
        count, number = scan.read_on(self._file, readable, kept, phy_offset - self._segment.phy_offset)
        self._check(number, phy_offset + count, len(readable) - count)
        return self._filled_to(phy_offset, view, count), count

    def _readable_bytes(self, phy_offset: int, size_bytes: int) -> int:
        return max(min(size_bytes, self._segment.end_phy_offset - phy_offset), 0)

    def _check(self, number: int, phy_offset: int, size_bytes: int) -> None:
        if number:
            segment = self._segment
            error = OSError(number, os.strerror(number))
            raise unreadable(segment.path, error, phy_offset - segment.phy_offset, size_bytes)


class PassingWindows(FileWindows):
    """Windows for callers that use no bytes: they are walked while they are read, in little memory, and come empty."""

    def walk(self, scan: WindowScan, phy_offset: int, size_bytes: int) -> tuple[memoryview, int]:
        """Walk a window as ``Windows.walk`` does. Return an empty window and the number of bytes walked."""
        wanted = self._readable_bytes(phy_offset, size_bytes)
        count, number = scan.read_through(self._file, wanted, phy_offset - self._segment.phy_offset)
        self._check(number, phy_offset + count, wanted - count)
        return memoryview(b""), count


class WindowsInTurns:
    """Two windows in turn, for callers that use one while a thread takes the next."""

    def __init__(self, log: SegmentSequence, size_bytes: int) -> None:
        self._next, self._last = Windows(log, size_bytes), Windows(log, size_bytes)
        self._phy_offset = -1  # of the last window

    def close(self) -> None:
        """Give both buffers back; windows are no longer valid."""
        self._next.close()
        self._last.close()

    def window(self, phy_offset: int, size_bytes: int) -> memoryview:
        """Return a window as ``Windows.window`` does; valid until the window after the next is taken.

        A longer window at the same offset replaces the same one.
        """
        if phy_offset != self._phy_offset:
            self._next, self._last = self._last, self._next
            self._phy_offset = phy_offset
        return self._last.window(phy_offset, size_bytes)


class WindowsAhead(Windows):
    """Windows with two more buffers, which a thread fills in turn with the bytes after the last window.

    The next window starts where the walk stopped, shortly before the bytes read ahead; the rest in between is copied.
    """

    def __init__(
        self,
        log: SegmentSequence,
        size_bytes: int,
        segment: Segment,
        file: LocalFile | RemoteFile,
        buffers: Buffers,
        until_phy_offset: int,
    ) -> None:
        super().__init__(log, size_bytes, buffers)
        self._segment = segment
        self._file = file
        self._end_phy_offset = min(segment.end_phy_offset, until_phy_offset)
        self.most_extra_bytes = min(_MOST_CARRIED_BYTES, size_bytes)
        self._room = [buffers.take(self.most_extra_bytes + size_bytes) for _ in range(2)]
        self._turn = 0
        self._last = memoryview(b"")
        self._last_end = -1
        self._ahead: Future[int] | None = None
        self._thread = ThreadPoolExecutor(1, "read-ahead")

    def close(self) -> None:
        """Wait for the thread, and give all buffers back."""
        self._thread.shutdown(cancel_futures=True)
        self._buffers.give_back(*self._room)
        super().close()

    def window(self, phy_offset: int, size_bytes: int) -> memoryview:
        """Return a window as ``Windows.window`` does, which may be up to ``most_extra_bytes`` longer than requested."""
        view = self._window_ahead(phy_offset, size_bytes)
        if view is None:
            view = super().window(phy_offset, size_bytes)
        self._last, self._last_end = view, phy_offset + len(view)
        self._turn = 1 - self._turn
        if len(view) >= size_bytes and self._last_end < self._end_phy_offset:
            self._ahead = self._thread.submit(self._read, self._turn, self._last_end)
        return view

    def _window_ahead(self, phy_offset: int, size_bytes: int) -> memoryview | None:
        """Return the window made of the last one's rest and the bytes read ahead; None if it must be read."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        count = ahead.result()
        carried = self._last_end - phy_offset
        if not 0 <= carried <= min(self.most_extra_bytes, len(self._last)) or size_bytes > self._size_bytes:
            return None
        if carried + count < size_bytes and self._last_end + count < self._segment.end_phy_offset:
            return None  # the caller needs more bytes than were read ahead, and the file has them
        room = memoryview(self._room[self._turn])
        start = self.most_extra_bytes - carried
        room[start : self.most_extra_bytes] = self._last[len(self._last) - carried :]
        return room[start : self.most_extra_bytes + count]

    def _read(self, turn: int, phy_offset: int) -> int:
        """Fill a buffer after the room for the rest. Return the number of bytes. Runs in the thread."""
        view = memoryview(self._room[turn])[self.most_extra_bytes :]
        view = view[: self._end_phy_offset - phy_offset]
        return self._file.read_into(phy_offset - self._segment.phy_offset, view)


def windows_by_the_kernel(log: SegmentSequence, segment: Segment, size_bytes: int, *, kept: bool = True) -> Windows:
    """Return windows of ``size_bytes`` over a segment, which the kernel reads if the log shows the file's own bytes.

    ``kept``: the caller uses the bytes. Raises FailedError if the file exists and cannot be opened.
    """
    if not log.is_plain(segment):
        return Windows(log, size_bytes)
    try:
        return (FileWindows if kept else PassingWindows)(log, segment, size_bytes)
    except FileNotFoundError:
        return Windows(log, size_bytes)
    except OSError as error:
        raise unreadable(segment.path, error) from error


@contextmanager
def windows_over(
    log: SegmentSequence,
    segment: Segment,
    size_bytes: int,
    *,
    ahead: bool,
    buffers: Buffers,
    until: int | None = None,
) -> Iterator[Windows]:
    """Yield windows of ``size_bytes`` over a segment, in ``buffers``; they are valid until the end of the context.

    With ``ahead`` a thread reads the next one, up to the offset ``until``, if there is more than one window and the log
    shows the file's own bytes. Raises FailedError if the file exists and cannot be opened.
    """
    shows_the_file = log.is_plain(segment) or is_remote(segment.path)
    try:
        # The thread has its own descriptor, because the log's cache may close others meanwhile.
        file = open_file(segment.path) if ahead and shows_the_file and segment.size_bytes > size_bytes else None
    except FileNotFoundError:
        file = None
    except OSError as error:
        raise unreadable(segment.path, error) from error
    with closing(file) if file is not None else nullcontext():
        end = segment.end_phy_offset if until is None else until
        windows = (
            WindowsAhead(log, size_bytes, segment, file, buffers, end) if file else Windows(log, size_bytes, buffers)
        )
        with closing(windows):
            yield windows
