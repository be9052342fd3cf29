"""One segment walked by threads, in pieces that must prove to join.

A piece that starts inside the segment finds its first frame by itself. It counts if that is where the frame in front of
it ends, and if it ends with a frame: then it holds the rows that a walk from the segment's start has there. From the first
piece that does not, the walk goes on alone, so what it gives never depends on how many threads there were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from store_core.errors import FailedError
from store_core.kernel.codes import FrameKind
from store_core.scan.frames import FrameTable, stretch
from store_core.scan.windows import windows_by_the_kernel
from store_core.storage.store import Store

if TYPE_CHECKING:
    from store_core.scan.log import ScanOptions
    from store_core.storage.sequence import Segment

PIECE_SIZE_BYTES: Final = 4 << 20  # each thread has one, and one more waits
# Of those whose bytes nobody looks at: what is kept are columns, a quarter of their length. Twice as long ones take 15 MB more.
BARE_PIECE_SIZE_BYTES: Final = 8 << 20
# Where queues are built over patches, which are made as they are read and take memory meanwhile.
PATCHED_PIECE_SIZE_BYTES: Final = 2 << 20
WORTH_BYTES: Final = 2 << 20  # a smaller segment is walked before threads have begun
_BEHIND_BYTES: Final = 64 << 10  # read with a piece, for the record that begins in it and ends in the next one


def walk_side_by_side(store: Store, segment: Segment, options: ScanOptions) -> Iterator[FrameTable]:
    """As ``scan_segment`` over a whole segment, by ``options.jobs`` threads. At most one piece more than that is held.

    Where there are two or more, the caller's is one of them: while it would have to wait it walks, too. One thread walks
    beside the caller's.
    """
    from store_core.scan.log import nominal_end, scan_segment

    at, end = segment.phy_offset, nominal_end(store.log, segment)
    alone = replace(options, jobs=0, bytes_for=None)
    if end - at < WORTH_BYTES:
        yield from scan_segment(store, segment, alone, at)
        return
    piece_size_bytes = PIECE_SIZE_BYTES
    if options.bytes_for is not None and store.log.is_plain(segment):
        bare = replace(alone, bytes_for=options.bytes_for)
        at = yield from _joining(store, segment, bare, options.jobs, at, end, BARE_PIECE_SIZE_BYTES)
    elif options.bytes_for is not None:
        piece_size_bytes = PATCHED_PIECE_SIZE_BYTES
    if at < end:
        at = yield from _joining(store, segment, alone, options.jobs, at, end, piece_size_bytes)
    if at < end:
        yield from scan_segment(store, segment, alone, at, chained=True)


def _joining(
    store: Store, segment: Segment, alone: ScanOptions, jobs: int, at: int, end: int, piece_size_bytes: int
) -> Generator[FrameTable, None, int]:
    """The rows of the pieces from ``at`` up to the first that does not join, or lacks its bytes; returns where they end."""
    from store_core.scan.log import without_stale

    starts = iter(range(at, min(end, segment.end_phy_offset), piece_size_bytes))
    with ExitStack() as stack:
        free = [stack.enter_context(_Walker(store, segment, alone, piece_size_bytes)) for _ in range(jobs + 1)]
        pool = stack.enter_context(ThreadPoolExecutor(max(jobs - 1, 1), "walk"))
        waiting: deque[_Piece] = deque()
        stack.callback(lambda: [left.found.cancel() for left in waiting])
        joins = True
        while joins:
            while free and (start := next(starts, None)) is not None:
                stop = min(start + piece_size_bytes, end)
                walker = free.pop()
                waiting.append(_Piece(start, stop, walker, pool.submit(walker.walk, start, stop)))
            if not waiting:
                break
            if jobs > 1:
                _help(waiting)
            piece = waiting.popleft()
            tables = piece.found.result()
            if alone.bytes_for is not None and any(table.any_has(alone.bytes_for) for table in tables):
                break
            if at < piece.stop:  # else a record in front covers it
                for table in _joined([without_stale(store, table) for table in tables], at):
                    at = table.end_phy_offset
                    yield table
                joins = at >= piece.stop
            free.append(piece.walker)
    return at


class _Walker:
    """What one piece at a time is walked with: descriptors and a buffer of its own."""

    def __init__(self, store: Store, segment: Segment, options: ScanOptions, piece_size_bytes: int) -> None:
        self._store = Store(store.settings)
        self._store.__dict__["log"] = store.log.apart()
        self._store.__dict__["stale_from"] = None  # who joins the pieces looks for stale records
        self._segment = segment
        size = piece_size_bytes + _BEHIND_BYTES
        self._options = replace(options, window_size_bytes=size)
        self._windows = windows_by_the_kernel(self._store.log, segment, size, kept=options.bytes_for is None)

    def __enter__(self) -> _Walker:
        return self

    def __exit__(self, *_: object) -> None:
        self._windows.close()
        self._store.close()

    def walk(self, start: int, stop: int) -> list[FrameTable]:
        """Runs in a thread: the frames that begin in [start, stop), and what lies in front of the first of them."""
        tables = list(self._tables(start, stop))
        if len(tables) > 1 and self._options.bytes_for is None:  # a window is valid until the next one is asked for
            return [_with_own_window(table) for table in self._tables(start, stop)]
        if start > self._segment.phy_offset:  # most begin inside a record that the piece in front covers
            return [
                stretch(table, 1, len(table)) if table.kind[0] == int(FrameKind.DAMAGE) else table for table in tables
            ]
        return tables

    def _tables(self, start: int, stop: int) -> Iterator[FrameTable]:
        from store_core.scan.log import nominal_end, scan_segment

        to_phy_offset = stop if stop < nominal_end(self._store.log, self._segment) else None
        return scan_segment(self._store, self._segment, self._options, start, to_phy_offset, windows=self._windows)


def _with_own_window(table: FrameTable) -> FrameTable:
    """The table with a copy of its window, as far as its rows go."""
    end = max(table.end_phy_offset - table.window_phy_offset, 0)
    return replace(table, window=memoryview(bytes(table.window[:end])))


@dataclass(slots=True)
class _Piece:
    """The frames that begin in [start, stop), with who walks them."""

    start: int
    stop: int
    walker: _Walker
    found: Future[list[FrameTable]]


def _help(waiting: deque[_Piece]) -> None:
    """Walk pieces that nobody has begun, the first ones first, until the first of all is done, or all are begun."""
    while not waiting[0].found.done():
        piece = next((piece for piece in waiting if piece.found.cancel()), None)
        if piece is None:
            return
        piece.found = Future()
        try:
            piece.found.set_result(piece.walker.walk(piece.start, piece.stop))
        except FailedError as error:  # told when it is its turn
            piece.found.set_exception(error)


def _joined(tables: list[FrameTable], at: int) -> Iterator[FrameTable]:
    """What of a piece counts behind a frame that ends at ``at``: from the frame that begins there to the last one."""
    if len(tables) == 1 and len(tables[0]) and tables[0].is_good and tables[0].phy_offset[0] == at:
        yield tables[0]
        return
    frames = [table.messages | table.of_kind(FrameKind.BLANK) for table in tables]
    last = max((number for number, mask in enumerate(frames) if mask.any()), default=-1)
    for number, table in enumerate(tables[: last + 1]):
        first = int(np.searchsorted(table.phy_offset, at))
        stop = len(table) if number < last else int(np.flatnonzero(frames[number])[-1]) + 1
        if first >= stop:
            continue
        if table.phy_offset[first] != at or not frames[number][first]:
            return
        part = stretch(table, first, stop)
        yield part
        at = part.end_phy_offset
