"""The walk over the log for who only asks what is good and what is not: runs of frames as plain rows.

The same walk as ``scan.log``'s, by the kernel's walk over files where the segment is one, else over windows: views of a
log and logs in object stores are read through Python. The rows are the same (``tests/scan/test_runs.py``).
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

# Stays in the processor's cache from the reading to the walking; reading smaller ones costs more calls than it saves.
BLOCK_SIZE_BYTES: Final = 2 << 20
# So long an interrupt may have to wait; at the end of each call some blocks have been read ahead in vain.
_CALL_SECONDS: Final = 0.2
CHECK_ALL: Final = ScanFlag.CHECK_CRC | ScanFlag.CHECK_PROPERTY_CRC
Result = TypeVar("Result")


class Runs(NamedTuple):
    """Rows of a part of a piece, at least one; they lie back to back and in log order."""

    rows: Sequence[FrameRow]
    message_count: int

    @property
    def phy_offset(self) -> int:
        return self.rows[0].phy_offset

    @property
    def end_phy_offset(self) -> int:
        return self.rows[-1].end_phy_offset


class RunOptions(NamedTuple):
    """What a walk looks at, and how; only ``flags`` makes a difference to what it tells."""

    flags: ScanFlag = CHECK_ALL
    read_ahead: bool = True
    block_size_bytes: int = BLOCK_SIZE_BYTES
    call_seconds: float = _CALL_SECONDS


def scan_runs(store: Store, piece: Piece, options: RunOptions | None = None) -> Iterator[Runs]:
    """The frames of a piece. What a short file lacks comes as a HOLE row; what is too long is not looked at.

    Raises FailedError where the segment cannot be read.
    """
    options = options or RunOptions()
    if store.log.is_plain(piece.segment):
        yield from _file_runs(store, piece, options)
    else:
        yield from window_runs(store, piece, options)


def readable_runs(store: Store, piece: Piece, options: RunOptions | None = None) -> Iterator[Runs]:
    """As ``scan_runs``, going around what the system refuses to read: a HOLE row with a ``HoleCode``, from behind the last
    whole frame to where bytes are to be had again and the rest of a record ends.

    Raises FailedError where what is said is not about the segment's bytes.
    """
    segment, at, part = piece.segment, piece.from_phy_offset, piece
    stop = min(piece.to_phy_offset, nominal_end(store.log, segment))
    lost: FrameRow | None = None
    while part.from_phy_offset < min(stop, segment.end_phy_offset) or part is piece:
        try:
            for runs in scan_runs(store, part, options):
                yield runs if lost is None else _behind(lost, runs)
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


def _behind(lost: FrameRow, runs: Runs) -> Runs:
    """Rows with what could not be read in front of them; it takes in the rest of a record."""
    first, *others = runs.rows
    if first.kind == FrameKind.DAMAGE:
        return Runs([lost._replace(size_bytes=first.end_phy_offset - lost.phy_offset), *others], runs.message_count)
    return Runs([lost, *runs.rows], runs.message_count)


def map_runs(
    store: Store, pieces: Sequence[Piece], work: Callable[[Piece, Iterator[Runs]], Result], *, jobs: int = 1
) -> Iterator[tuple[Piece, Result]]:
    """``work`` over the runs of each piece that can be read, ``jobs`` pieces side by side; results in the order of the pieces.

    The kernel gives up the interpreter lock, so threads do. ``work`` must not touch what another piece's touches.
    """
    if jobs <= 1 or len(pieces) <= 1:
        for piece in pieces:
            yield piece, work(piece, readable_runs(store, piece))
        return

    def one(piece: Piece, lanes: Lanes) -> Result:
        with store.with_log(store.log.apart()) as own:  # descriptors are not shared between threads
            runs = readable_runs(own, piece, RunOptions(read_ahead=False))  # as long as others walk, that pays nothing
            return work(piece, lanes.until_stopped(runs))

    yield from Lanes(jobs).map(one, pieces)


def _file_runs(store: Store, piece: Piece, options: RunOptions) -> Iterator[Runs]:
    """As ``scan_runs``, the kernel reading."""
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
        pass  # removed under us
    except OSError as error:
        raise unreadable(segment.path, error) from error
    else:
        with closing(file):
            at = yield from _walked(store, file, piece, stop, options)
    rows = [FrameRow(*row) for row in missing_end(store.log, segment, at, stop)] if at < stop else []
    if rows:
        yield Runs(rows, 0)


def _walked(store: Store, file: FileWalk, piece: Piece, stop: int, options: RunOptions) -> Generator[Runs, None, int]:
    """What the file holds; returns where the walk ended."""
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
    """Makes ranges whole that go on from call to call: the last row is held back as long as it may."""

    def __init__(self) -> None:
        self._held: FrameRow | None = None

    def with_rows(self, rows: Sequence[FrameRow]) -> list[FrameRow]:
        """What is whole of the rows so far."""
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
        """What was held back."""
        held, self._held = self._held, None
        return [] if held is None else [held]


def _without_stale(store: Store, rows: list[FrameRow]) -> tuple[list[FrameRow], int]:
    """Left-over records behind the tail as STALE rows, and how many there are; the tail is only looked at when needed."""
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
    """Whether a record says that it lies further in front."""
    return row.code == FrameCode.OWN_OFFSET and row.own_phy_offset < row.phy_offset


def window_runs(store: Store, piece: Piece, options: RunOptions) -> Iterator[Runs]:
    """As ``scan_runs``, over windows."""
    from store_core.scan.log import ScanOptions, scan_segment

    segment = piece.segment
    stop = None if piece.to_phy_offset >= nominal_end(store.log, segment) else piece.to_phy_offset
    how = ScanOptions(
        check_crc=bool(options.flags & ScanFlag.CHECK_CRC),
        check_property_crc=bool(options.flags & ScanFlag.CHECK_PROPERTY_CRC),
        properties=False,
        runs=True,
        read_ahead=options.read_ahead,
    )
    for table in scan_segment(store, segment, how, piece.from_phy_offset, stop, chained=piece.chained):
        columns = table.kind, table.code, table.phy_offset, table.size_bytes
        queues = table.own_phy_offset, table.queue_id, table.queue_offset
        topics = [table.topics[topic] if topic >= 0 else b"" for topic in table.topic_id.tolist()]
        rows = zip(*(column.tolist() for column in (*columns, *queues)), topics, strict=True)
        yield Runs([FrameRow(*row) for row in rows], table.message_count)
