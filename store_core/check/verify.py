"""Check every record of the log against its checksums."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from store_core.check.log import LogFindings
from store_core.check.pieces import whole_log, without_rest
from store_core.findings import Finding
from store_core.kernel import FrameRow
from store_core.kernel.codes import FrameCode, FrameKind, HoleCode
from store_core.read.log_files import unread_log
from store_core.scan.runs import Runs, map_runs
from store_core.scan.windows import Piece, nominal_end
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

_BAD_CODES = (FrameCode.BAD_CRC, FrameCode.BAD_PROPERTY_CRC)


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
