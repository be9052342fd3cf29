"""Verify every record of a log, or of a part or sample of it, against its checksum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from store_core.check.log import LogFindings
from store_core.errors import UsageError
from store_core.findings import Finding
from store_core.kernel.codes import FrameCode, FrameKind, HoleCode, ScanFlag
from store_core.kernel.file import FrameRow
from store_core.layout import record
from store_core.read.log_files import unread_log
from store_core.scan.pieces import Piece, nominal_end
from store_core.scan.runs import RunOptions, Runs, map_runs, scan_runs
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

_SAMPLE_SIZE_BYTES: Final = 16 << 20  # much longer than a record, so the cut records at its edges matter little
_LEAST_SAMPLE_SIZE_BYTES: Final = 64 << 10
_LEAST_SAMPLES: Final = 64  # windows of a log, if all were chosen
_FRAMES: Final = (FrameKind.MESSAGE, FrameKind.BLANK)
# In a piece that starts inside a record, the record's rest looks like damage.
_LONGEST_REST_BYTES: Final = record.DEFAULT_MAX_MESSAGE_SIZE_BYTES + record.RECORD_OVERHEAD_LIMIT_BYTES
_BAD_CODES = (FrameCode.BAD_CRC, FrameCode.BAD_PROPERTY_CRC)


def whole_log(store: Store) -> list[Piece]:
    """Return a piece for each segment."""
    return [Piece(segment, segment.phy_offset, nominal_end(store.log, segment), True) for segment in store.log.segments]


def log_range(store: Store, from_phy_offset: int | None, to_phy_offset: int | None) -> list[Piece]:
    """Return pieces with the frames whose first byte lies in [from, to).

    A walk from its segment's start finds the first frame. Raises UsageError for a range outside the log.
    """
    pieces = []
    is_inside = not store.log.segments
    for whole in whole_log(store):
        start = max(whole.from_phy_offset, from_phy_offset or 0)
        stop = whole.to_phy_offset if to_phy_offset is None else min(whole.to_phy_offset, to_phy_offset)
        if start >= stop:
            continue
        is_inside = True
        if start > whole.from_phy_offset:
            start, chained = _first_frame(store, whole.segment, start)
            pieces += [Piece(whole.segment, start, stop, chained)] if start < stop else []
        else:
            pieces.append(whole._replace(to_phy_offset=stop))
    if not is_inside:
        log = store.log
        span = f"from {log.min_phy_offset} to {nominal_end(log, log.segments[-1])}"
        raise UsageError("the range is outside the log", to_do=f"the log reaches {span}")
    return pieces


def _first_frame(store: Store, segment: Segment, phy_offset: int) -> tuple[int, bool]:
    """Return the start of the first frame at or after an offset, and whether another frame ends there."""
    end, chained = phy_offset, False
    walk = Piece(segment, segment.phy_offset, phy_offset, True)
    for runs in scan_runs(store, walk, RunOptions(flags=ScanFlag(0))):
        end, chained = runs.end_phy_offset, runs.rows[-1].kind in _FRAMES
    return (max(end, phy_offset), True) if chained else (phy_offset, False)


def random_pieces(store: Store, share: float, seed: int | None = None) -> list[Piece]:
    """Return random windows of the log, together about ``share`` (above 0, at most 1) of it and at least one.

    Neighbours are joined. ``seed`` makes the choice repeatable. Raises UsageError for a share out of range.
    """
    from random import Random  # a check of the whole log does not need it

    if not 0 < share <= 1:
        raise UsageError(f"a share of {share:.3%} is no sample", to_do="give more than 0% and at most 100%")
    size = min(max(store.log.size_bytes // _LEAST_SAMPLES, _LEAST_SAMPLE_SIZE_BYTES), _SAMPLE_SIZE_BYTES)
    windows = [
        Piece(whole.segment, start, min(start + size, whole.to_phy_offset), start == whole.from_phy_offset)
        for whole in whole_log(store)
        for start in range(whole.from_phy_offset, whole.to_phy_offset, size)
    ]
    count = min(len(windows), max(1, round(share * len(windows))))
    chosen = sorted(Random(seed).sample(range(len(windows)), count))
    pieces: list[Piece] = []
    for window in (windows[number] for number in chosen):
        last = pieces[-1] if pieces else None
        if last is not None and last.segment is window.segment and last.to_phy_offset == window.from_phy_offset:
            pieces[-1] = last._replace(to_phy_offset=window.to_phy_offset)
        else:
            pieces.append(window)
    return pieces


def without_rest(piece: Piece, parts: Iterator[Runs]) -> Iterator[Runs]:
    """Yield the rows of a piece without the bytes before its first frame, where they may be a record's rest."""
    held: list[Runs] = []
    for runs in parts:
        first = next((number for number, row in enumerate(runs.rows) if row.kind in _FRAMES), None)
        if first is None:
            held.append(runs)
            continue
        if runs.rows[first].phy_offset - piece.from_phy_offset > _LONGEST_REST_BYTES:
            yield from held
        elif first:
            runs = Runs(runs.rows[first:], runs.message_count)
        yield runs
        yield from parts
        return
    if held and (
        held[-1].end_phy_offset - piece.from_phy_offset > _LONGEST_REST_BYTES
        or all(row.kind == FrameKind.ZEROS for runs in held for row in runs.rows)
    ):
        yield from held


@dataclass(slots=True)
class SegmentReport:
    """The bytes walked in one segment, the records found, and how many of them have wrong checksums."""

    name: str
    size_bytes: int = 0
    records: int = 0
    bad: int = 0

    def as_json(self) -> dict[str, object]:
        """Return a member of ``segments`` in the command line's contract."""
        return {
            "name": self.name,
            "records": self.records,
            "bytes": self.size_bytes,
            "ok": self.records - self.bad,
            "bad": self.bad,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification.

    ``size_bytes`` counts bytes walked; ``counts`` has the number of findings of each code, listed or not. ``left``
    are the pieces for which there was no time.
    """

    size_bytes: int
    records: int
    segments: list[SegmentReport]
    findings: list[Finding]
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)
    left: Sequence[Piece] = ()

    @property
    def next_phy_offset(self) -> int | None:
        """The offset where a later call must continue; None when the walk is complete."""
        return self.left[0].from_phy_offset if self.left else None


def verify_log(
    store: Store,
    pieces: Sequence[Piece] | None = None,
    *,
    jobs: int = 1,
    live: bool | Callable[[], bool] = False,
    max_seconds: float | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Walk the log, or only ``pieces`` of it, and check every body and property checksum, also after damage.

    Unreadable ranges, by disk or by permission, are findings. Memory grows with ``jobs``, not with the store.

    Args:
        jobs: how many pieces are walked at the same time.
        live: whether a broker may be writing, so that a torn tail is no finding; a callable is only called for such a
            tail.
        max_seconds: the walk stops shortly after this time; ``left`` has the rest. Each call walks something.
        on_progress: is called with the bytes walked so far.

    Raises:
        FailedError: reading fails for another reason.
    """
    pieces = whole_log(store) if pieces is None else pieces
    verifier = _Verifier(store, pieces, max_seconds, on_progress)
    reports: dict[int, SegmentReport] = {}
    findings = LogFindings(store.log)
    left: list[Piece] = []
    for piece, seen in map_runs(store, pieces, verifier.look, jobs=jobs):
        if piece.from_phy_offset == piece.segment.phy_offset and (gap := _gap_before(store.log, piece.segment)):
            findings.hole(piece.segment.phy_offset - gap, gap)
        if seen.left is not None:
            left.append(seen.left)
        if seen.found is not None:
            findings.join(seen.found)
        if seen.found is not None and not seen.has_gone:
            report = reports.setdefault(piece.segment.phy_offset, SegmentReport(piece.segment.name))
            report.size_bytes += seen.size_bytes
            report.records += seen.records
            report.bad += seen.bad
    log_goes_on = bool(left) or not pieces or pieces[-1].to_phy_offset < _end(store.log)
    if callable(live):
        live = findings.may_be_torn and live()
    listed = findings.end(live=live, log_goes_on=log_goes_on)
    listed[:0] = unread_log(store)
    segments = list(reports.values())
    return VerifyReport(
        sum(report.size_bytes for report in segments),
        sum(report.records for report in segments),
        segments,
        listed,
        time.monotonic() - verifier.started,
        findings.counts,
        left,
    )


@dataclass(slots=True)
class _Seen:
    """The result of a piece. ``found`` is None if there was no time for it; ``left`` is the rest without time."""

    found: LogFindings | None = None
    left: Piece | None = None
    size_bytes: int = 0
    records: int = 0
    bad: int = 0
    has_gone: bool = False  # the segment was removed before any of it was read


class _Verifier:
    """Verifies pieces, some of them at the same time."""

    def __init__(
        self,
        store: Store,
        pieces: Sequence[Piece],
        max_seconds: float | None,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self.started = time.monotonic()
        self._store = store
        self._first = pieces[0] if pieces else None
        self._deadline = None if max_seconds is None else self.started + max_seconds
        self._on_progress = on_progress
        self._walked = 0
        self._lock = Lock()

    def look(self, piece: Piece, parts: Iterator[Runs]) -> _Seen:
        if piece is not self._first and self._is_late:
            return _Seen(left=piece)
        seen = _Seen(LogFindings(self._store.log))
        assert seen.found is not None
        file = self._store.relative(piece.segment.path)
        begins_with_frame = piece.chained or piece.from_phy_offset == piece.segment.phy_offset
        at = first = piece.from_phy_offset
        unread = gone = 0
        for number, runs in enumerate(parts if begins_with_frame else without_rest(piece, parts)):
            if number == 0:
                at = first = runs.phy_offset
            seen.records += runs.message_count
            seen.bad += sum(row.code in _BAD_CODES for row in runs.rows)
            holes = [row for row in runs.rows if row.kind == FrameKind.HOLE]
            unread += sum(_listed_bytes(row, piece.segment) for row in holes)
            gone += sum(_listed_bytes(row, piece.segment) for row in holes if row.code == HoleCode.NO_FILE)
            seen.found.add_rows(runs.rows, file)
            self._report_progress(runs.end_phy_offset - at)
            at = runs.end_phy_offset
            if self._is_late and at < piece.to_phy_offset:
                # A range that may be damage or the tail is read again, with the bytes after it.
                held_from = seen.found.put_back()
                at = at if held_from is None else held_from
                seen.left = piece._replace(from_phy_offset=at, chained=True)
                break
        else:
            at = min(at, piece.segment.end_phy_offset, piece.to_phy_offset)  # the last frame may end after the piece
        seen.size_bytes = max(at - first - unread, 0)
        seen.has_gone = gone > 0 and not seen.size_bytes
        return seen

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _report_progress(self, size_bytes: int) -> None:
        if self._on_progress is not None:
            with self._lock:
                self._walked += size_bytes
                self._on_progress(self._walked)


def _listed_bytes(row: FrameRow, segment: Segment) -> int:
    """Return how many bytes of a row were stored when the segment was listed."""
    return max(min(row.end_phy_offset, segment.end_phy_offset) - row.phy_offset, 0)


def _gap_before(log: SegmentSequence, segment: Segment) -> int:
    """Return how many bytes are missing between a segment and the previous one."""
    before = log.preceding(segment)
    return max(segment.phy_offset - nominal_end(log, before), 0) if before is not None else 0


def _end(log: SegmentSequence) -> int:
    return nominal_end(log, log.segments[-1]) if log.segments else 0
