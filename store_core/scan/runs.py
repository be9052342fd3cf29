"""Walk over the log for callers that only need to know which parts are good: runs of frames as plain rows.

It is the walk of ``scan.log``, by the kernel on the file itself; views of a log and logs in object stores are walked over
windows through Python. The rows are the same (``tests/scan/test_runs.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple, TypeVar

from store_core.errors import UnreadableError
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.file import FileWalk, FrameRow, Walked, open_walk, walk
from store_core.scan.io_errors import refused_stretches
from store_core.scan.pieces import MAY_GO_ON, Piece, missing_end, nominal_end, skip_hole
from store_core.scan.thread_pool import Lanes
from store_core.storage.files import unreadable
from store_core.storage.store import Store

# A block stays in the processor's cache between reading and walking; smaller ones need more calls.
BLOCK_SIZE_BYTES: Final = 2 << 20
# An interrupt waits for the end of a kernel call, but each end wastes some blocks that were read ahead.
_CALL_SECONDS: Final = 0.2
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
    read_ahead: bool = True
    block_size_bytes: int = BLOCK_SIZE_BYTES
    call_seconds: float = _CALL_SECONDS


def scan_runs(store: Store, piece: Piece, options: RunOptions | None = None) -> Iterator[Runs]:
    """Yield the frames of a piece. Raises FailedError if the segment cannot be read.

    The missing end of a short file becomes a HOLE row; bytes after the segment's nominal end are not read.
    """
    options = options or RunOptions()
    if store.log.is_plain(piece.segment):
        yield from _file_runs(store, piece, options)
    else:
        yield from window_runs(store, piece, options)


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
            runs = readable_runs(
                thread_store, piece, RunOptions(read_ahead=False)
            )  # reading ahead gains nothing while other threads walk
            return work(piece, lanes.until_stopped(runs))

    yield from Lanes(jobs).map(work_alone, pieces)


def _file_runs(store: Store, piece: Piece, options: RunOptions) -> Iterator[Runs]:
    """Yield the frames of a piece, as ``scan_runs`` does, from a file that the kernel reads."""
    segment = piece.segment
    end = nominal_end(store.log, segment)
    stop = min(piece.to_phy_offset, end)
    at = piece.from_phy_offset
    try:
        file = open_walk(
            segment.path,
            segment.phy_offset,
            segment.end_phy_offset,
            end,
            block_bytes=options.block_size_bytes,
            reads_ahead=options.read_ahead,
        )
    except FileNotFoundError:
        pass  # the file has been removed since it was listed
    except OSError as error:
        raise unreadable(segment.path, error) from error
    else:
        with closing(file):
            at = yield from _walked(store, file, piece, stop, options)
    rows = [FrameRow(*row) for row in missing_end(store.log, segment, at, stop)] if at < stop else []
    if rows:
        yield Runs(rows, 0)


def _walked(store: Store, file: FileWalk, piece: Piece, stop: int, options: RunOptions) -> Generator[Runs, None, int]:
    """Yield the frames in the file. Return the offset where the walk ended."""
    segment, at = piece.segment, piece.from_phy_offset
    state = int(ScanState.CHAINED if piece.chained or at == segment.phy_offset else ScanState.IN_DAMAGE)
    joined = _Joined()
    may_be_hole = state == ScanState.CHAINED
    is_over = at >= stop
    while not is_over:
        if may_be_hole and (skipped := skip_hole(store.log, segment, at)) > at:
            found = Walked([FrameRow(FrameKind.ZEROS, FrameCode.OK, at, skipped - at)], 0, skipped, ScanState.IN_ZEROS)
        else:
            found = walk(file, at, stop, state, options.flags, options.call_seconds)
        at, state, is_over = found.next_phy_offset, found.next_state, found.is_over or found.next_phy_offset >= stop
        may_be_hole = state == ScanState.IN_ZEROS
        rows, stale = _without_stale(store, found.rows)
        rows = joined.with_rows(rows)
        if rows := rows + joined.rest() if is_over or found.failure is not None else rows:
            yield Runs(rows, found.message_count - stale)
        if found.failure is not None:
            number, position, size = found.failure
            raise unreadable(segment.path, OSError(number, os.strerror(number)), position, size)
    return at


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


def window_runs(store: Store, piece: Piece, options: RunOptions) -> Iterator[Runs]:
    """Yield the frames of a piece, as ``scan_runs`` does, from windows."""
    from store_core.scan.log import ScanOptions, scan_segment

    segment = piece.segment
    stop = None if piece.to_phy_offset >= nominal_end(store.log, segment) else piece.to_phy_offset
    scan_options = ScanOptions(
        check_crc=bool(options.flags & ScanFlag.CHECK_CRC),
        check_property_crc=bool(options.flags & ScanFlag.CHECK_PROPERTY_CRC),
        properties=False,
        runs=True,
        read_ahead=options.read_ahead,
    )
    for table in scan_segment(store, segment, scan_options, piece.from_phy_offset, stop, chained=piece.chained):
        columns = table.kind, table.code, table.phy_offset, table.size_bytes
        queues = table.own_phy_offset, table.queue_id, table.queue_offset
        topics = [table.topics[topic] if topic >= 0 else b"" for topic in table.topic_id.tolist()]
        rows = zip(*(column.tolist() for column in (*columns, *queues)), topics, strict=True)
        yield Runs([FrameRow(*row) for row in rows], table.message_count)
