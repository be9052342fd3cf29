"""Walk over the log for callers that only need to know which parts are good: runs of frames as plain rows.

It is the walk of ``scan.log`` without columns, and gives the same rows (``tests/scan/test_runs.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from store_core.errors import UnreadableError
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.file import FrameRow, row_scan, window_rows
from store_core.scan.io_errors import refused_stretches
from store_core.scan.pieces import MAY_GO_ON, Piece, missing_end, nominal_end
from store_core.scan.thread_pool import Lanes
from store_core.scan.windows import REMOTE_WINDOW_SIZE_BYTES, Span, Windows, walk_windows
from store_core.storage.remote_path import is_remote
from store_core.storage.store import Store

if TYPE_CHECKING:
    from store_core.kernel import WindowScan

WINDOW_SIZE_BYTES: Final = 4 << 20  # an interrupt waits until a window has been walked
CHECK_ALL: Final = ScanFlag.CHECK_CRC | ScanFlag.CHECK_PROPERTY_CRC
Result = TypeVar("Result")


class Runs(NamedTuple):
    """Rows of a part of a piece, at least one; they adjoin each other, in log order."""

    rows: Sequence[FrameRow]
    message_count: int

    @property
    def phy_offset(self) -> int:
        return self.rows[0].phy_offset

    @property
    def end_phy_offset(self) -> int:
        return self.rows[-1].end_phy_offset


class RunOptions(NamedTuple):
    """The options of a walk; only ``flags`` changes its rows."""

    flags: ScanFlag = CHECK_ALL
    window_size_bytes: int = WINDOW_SIZE_BYTES


def scan_runs(store: Store, piece: Piece, options: RunOptions | None = None) -> Iterator[Runs]:
    """Yield the frames of a piece. Raises FailedError if the segment cannot be read.

    The missing end of a short file becomes a HOLE row; bytes after the segment's nominal end are not read.
    """
    options = options or RunOptions()
    segment, at = piece.segment, piece.from_phy_offset
    end = nominal_end(store.log, segment)
    stop = min(piece.to_phy_offset, end)
    state = ScanState.CHAINED if piece.chained or at == segment.phy_offset else ScanState.IN_DAMAGE
    size = REMOTE_WINDOW_SIZE_BYTES if is_remote(segment.path) else options.window_size_bytes
    span = Span(at, state, stop, end, size)
    joined = _Joined()
    with closing(Windows(store.log, segment, span.window_size_bytes, kept=False, ahead_to=span.read_end)) as windows:

        def open_scan(at: int, state: int, size_bytes: int) -> WindowScan:
            return row_scan(at, end, state, options.flags, size_bytes, stop, reads_file=windows.reads_file)

        for walked in walk_windows(store.log, segment, windows, span, open_scan, window_rows):
            begin, at, found = walked.phy_offset, walked.end_phy_offset, walked.found
            hole = [FrameRow(FrameKind.ZEROS, FrameCode.OK, begin, at - begin)]
            rows, stale = _without_stale(store, found.rows if found is not None else hole)
            rows = joined.with_rows(rows)
            if rows := rows + joined.rest() if at >= stop or walked.error is not None else rows:
                yield Runs(rows, (found.message_count if found is not None else 0) - stale)
    missing = missing_end(store.log, segment, at, stop) if at < stop else ()
    if rows := [*joined.rest(), *(FrameRow(*row) for row in missing)]:
        yield Runs(rows, 0)


def readable_runs(store: Store, piece: Piece, options: RunOptions | None = None) -> Iterator[Runs]:
    """Yield the frames of a piece, as ``scan_runs`` does, with unreadable ranges as HOLE rows with a ``HoleCode``.

    Such a row starts after the last whole frame, and ends where bytes can be read again and the rest of a record ends.
    Raises FailedError for errors that are not about the segment's data.
    """
    segment, at, part = piece.segment, piece.from_phy_offset, piece
    stop = min(piece.to_phy_offset, nominal_end(store.log, segment))
    lost: FrameRow | None = None
    while part.from_phy_offset < min(stop, segment.end_phy_offset) or part is piece:
        try:
            for runs in scan_runs(store, part, options):
                yield runs if lost is None else _after_unreadable(lost, runs)
                at, lost = runs.end_phy_offset, None
            return
        except UnreadableError as error:
            [refused] = refused_stretches(store.log, segment, error, segment.phy_offset + error.at + 1)
            if lost is not None:
                yield Runs([lost], 0)
            end = min(refused.end_phy_offset, stop)
            lost = refused._replace(phy_offset=at, size_bytes=end - at)
            at = end
            part = piece._replace(from_phy_offset=at, chained=False)
    rows = [FrameRow(*row) for row in missing_end(store.log, segment, at, stop)] if at < stop else []
    yield Runs([lost, *rows] if lost is not None else rows, 0)


def _after_unreadable(lost: FrameRow, runs: Runs) -> Runs:
    """Return the rows after an unreadable range, which is extended over the rest of a record."""
    first, *following = runs.rows
    if first.kind == FrameKind.DAMAGE:
        return Runs([lost._replace(size_bytes=first.end_phy_offset - lost.phy_offset), *following], runs.message_count)
    return Runs([lost, *runs.rows], runs.message_count)


def map_runs(
    store: Store, pieces: Sequence[Piece], work: Callable[[Piece, Iterator[Runs]], Result], *, jobs: int = 1
) -> Iterator[tuple[Piece, Result]]:
    """Yield each piece with the result of ``work`` on its readable runs, in order, for ``jobs`` pieces at the same time.

    Threads are enough, because the kernel releases the interpreter lock. Calls of ``work`` must not share state.
    """
    if jobs <= 1 or len(pieces) <= 1:
        for piece in pieces:
            yield piece, work(piece, readable_runs(store, piece))
        return

    def work_alone(piece: Piece, lanes: Lanes) -> Result:
        with store.with_log(store.log.apart()) as thread_store:  # descriptors are not shared between threads
            return work(piece, lanes.until_stopped(readable_runs(thread_store, piece)))

    yield from Lanes(jobs).map(work_alone, pieces)


class _Joined:
    """Joins ranges that continue from call to call: the last row is held back while it may continue."""

    def __init__(self) -> None:
        self._held: FrameRow | None = None

    def with_rows(self, rows: Sequence[FrameRow]) -> list[FrameRow]:
        """Add rows. Return those that are complete so far."""
        whole: list[FrameRow] = []
        for row in rows:
            last = self._held
            if last is not None and last.kind == row.kind and row.kind in MAY_GO_ON:
                self._held = last._replace(size_bytes=last.size_bytes + row.size_bytes)
            else:
                whole += self.rest()
                self._held = row
        return whole if self._held is not None and self._held.kind in MAY_GO_ON else whole + self.rest()

    def rest(self) -> list[FrameRow]:
        """Return the row that was held back."""
        held, self._held = self._held, None
        return [] if held is None else [held]


def _without_stale(store: Store, rows: list[FrameRow]) -> tuple[list[FrameRow], int]:
    """Return the rows with stale records as STALE rows, and their number. The log's end is only searched for if needed."""
    if not any(map(_is_suspicious, rows)):
        return rows, 0
    from store_core.scan.tail import stale_from

    start = stale_from(store)
    if start is None:
        return rows, 0
    found = [row for row in rows if _is_suspicious(row) and row.phy_offset >= start]
    stale = {row.phy_offset: FrameRow(FrameKind.STALE, FrameCode.OK, row.phy_offset, row.size_bytes) for row in found}
    return [stale.get(row.phy_offset, row) for row in rows], len(stale)


def _is_suspicious(row: FrameRow) -> bool:
    """Return True if a record's own offset is lower than its position."""
    return row.code == FrameCode.OWN_OFFSET and row.own_phy_offset < row.phy_offset
