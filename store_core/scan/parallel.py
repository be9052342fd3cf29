"""Walk a segment by several threads, in pieces that are proven to join.

A piece that starts inside the segment finds its first frame itself. It is used if this frame starts where the frame before
it ends, and if the piece ends with a frame: then it has the rows of a walk from the segment's start. From the first other
piece on, a single walk continues, so the result never depends on the number of threads.
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
from store_core.scan.windows import Windows
from store_core.storage.store import Store

if TYPE_CHECKING:
    from store_core.scan.log import ScanOptions
    from store_core.storage.sequence import Segment

PIECE_SIZE_BYTES: Final = 4 << 20  # each thread walks one, and one more waits
# Pieces whose bytes are not used keep only columns, so they may be longer.
BARE_PIECE_SIZE_BYTES: Final = 8 << 20
# Patches of an edited log are made as they are read and take memory meanwhile, so these pieces are shorter.
PATCHED_PIECE_SIZE_BYTES: Final = 2 << 20
WORTH_BYTES: Final = 2 << 20  # a smaller segment is walked before threads have started
_BEHIND_BYTES: Final = 64 << 10  # read after a piece, for the record that starts in it and ends in the next one


def walk_side_by_side(store: Store, segment: Segment, options: ScanOptions) -> Iterator[FrameTable]:
    """Yield the tables of a whole segment, as ``scan_segment`` does, walked by ``options.jobs`` threads.

    With two or more jobs the caller's thread is one of them: it walks a piece instead of waiting. A single job is a thread
    besides the caller's. At most ``jobs + 1`` pieces are held.
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
        at = yield from _joined_pieces(store, segment, bare, options.jobs, at, end, BARE_PIECE_SIZE_BYTES)
    elif options.bytes_for is not None:
        piece_size_bytes = PATCHED_PIECE_SIZE_BYTES
    if at < end:
        at = yield from _joined_pieces(store, segment, alone, options.jobs, at, end, piece_size_bytes)
    if at < end:
        yield from scan_segment(store, segment, alone, at, chained=True)


def _joined_pieces(
    store: Store, segment: Segment, alone: ScanOptions, jobs: int, at: int, end: int, piece_size_bytes: int
) -> Generator[FrameTable, None, int]:
    """Yield the rows of the pieces from ``at`` up to the first that does not join or lacks needed bytes. Return their end."""
    from store_core.scan.log import without_stale

    starts = iter(range(at, min(end, segment.end_phy_offset), piece_size_bytes))
    with ExitStack() as stack:
        free = [stack.enter_context(_Walker(store, segment, alone, piece_size_bytes)) for _ in range(jobs + 1)]
        pool = stack.enter_context(ThreadPoolExecutor(max(jobs - 1, 1), "walk"))
        waiting: deque[_Piece] = deque()
        stack.callback(lambda: [piece_left.found.cancel() for piece_left in waiting])
        joins = True
        while joins:
            while free and (start := next(starts, None)) is not None:
                stop = min(start + piece_size_bytes, end)
                walker = free.pop()
                waiting.append(_Piece(start, stop, walker, pool.submit(walker.walk, start, stop)))
            if not waiting:
                break
            if jobs > 1:
                _walk_waiting(waiting)
            piece = waiting.popleft()
            tables = piece.found.result()
            if alone.bytes_for is not None and any(table.any_has(alone.bytes_for) for table in tables):
                break
            if at < piece.stop:  # else a record that starts before the piece covers it
                for table in _joined_rows([without_stale(store, table) for table in tables], at):
                    at = table.end_phy_offset
                    yield table
                joins = at >= piece.stop
            free.append(piece.walker)
    return at


class _Walker:
    """Walks a piece at a time, with file descriptors and a buffer of its own."""

    def __init__(self, store: Store, segment: Segment, options: ScanOptions, piece_size_bytes: int) -> None:
        self._store = Store(store.settings)
        self._store.__dict__["log"] = store.log.apart()
        self._store.__dict__["stale_from"] = None  # the joining thread looks for stale records
        self._segment = segment
        size = piece_size_bytes + _BEHIND_BYTES
        self._options = replace(options, window_size_bytes=size)
        self._windows = Windows(self._store.log, segment, size, kept=options.bytes_for is None)

    def __enter__(self) -> _Walker:
        return self

    def __exit__(self, *_: object) -> None:
        self._windows.close()
        self._store.close()

    def walk(self, start: int, stop: int) -> list[FrameTable]:
        """Return the frames that start in [start, stop), and the bytes before the first of them. Runs in a thread."""
        tables = list(self._tables(start, stop))
        if len(tables) > 1 and self._options.bytes_for is None:  # a window is valid only until the next one is taken
            return [_with_own_window(table) for table in self._tables(start, stop)]
        if start > self._segment.phy_offset:  # most pieces start inside a record that belongs to the piece before
            return [
                stretch(table, 1, len(table)) if table.kind[0] == int(FrameKind.DAMAGE) else table for table in tables
            ]
        return tables

    def _tables(self, start: int, stop: int) -> Iterator[FrameTable]:
        from store_core.scan.log import nominal_end, scan_segment

        to_phy_offset = stop if stop < nominal_end(self._store.log, self._segment) else None
        return scan_segment(self._store, self._segment, self._options, start, to_phy_offset, windows=self._windows)


def _with_own_window(table: FrameTable) -> FrameTable:
    """Return the table with a copy of its window, up to the end of its rows."""
    end = max(table.end_phy_offset - table.window_phy_offset, 0)
    return replace(table, window=memoryview(bytes(table.window[:end])))


@dataclass(slots=True)
class _Piece:
    """The frames that start in [start, stop), and their walker."""

    start: int
    stop: int
    walker: _Walker
    found: Future[list[FrameTable]]


def _walk_waiting(waiting: deque[_Piece]) -> None:
    """Walk pieces that no thread has started, in order, until the first of all is done, or all are started."""
    while not waiting[0].found.done():
        piece = next((piece for piece in waiting if piece.found.cancel()), None)
        if piece is None:
            return
        piece.found = Future()
        try:
            piece.found.set_result(piece.walker.walk(piece.start, piece.stop))
        except FailedError as error:  # raised when the piece's result is taken
            piece.found.set_exception(error)


def _joined_rows(tables: list[FrameTable], at: int) -> Iterator[FrameTable]:
    """Yield the rows of a piece from the frame at ``at`` to its last frame; none if no frame starts there."""
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
