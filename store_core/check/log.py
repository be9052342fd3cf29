"""Convert the frames of the log to findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from store_core.check.report import MOST_FINDINGS_PER_CODE, Findings
from store_core.findings import Finding, Severity
from store_core.kernel.codes import FrameCode, FrameKind, HoleCode
from store_core.kernel.file import FrameRow
from store_core.layout.record import page_end
from store_core.storage.live_start import Begin

if TYPE_CHECKING:
    from store_core.scan.frames import FrameTable, Ints
    from store_core.storage.sequence import SegmentSequence

_TAIL_SEGMENTS: Final = 2
_BY_FRAME_CODE: Final[dict[int, tuple[str, str]]] = {
    FrameCode.BAD_CRC: ("L001", "the body does not match its checksum"),
    FrameCode.OWN_OFFSET: ("L007", "the record says it lies at {own_phy_offset}"),
    FrameCode.BAD_PROPERTY_CRC: ("L011", "the property checksum does not match"),
    FrameCode.BAD_NUMBER: ("L022", "a property that must be a number is none"),
}
_DAMAGE_BY_CODE: Final = {
    FrameCode.BLANK_SIZE: ("L008", "the blank's length does not reach the segment's end"),
    FrameCode.LENGTH_MISMATCH: ("L013", "the record's length is not the sum of its parts"),
}
UNREADABLE: Final = "L021"
MISSING: Final = "L006"
REMOVED: Final = "L025"  # missing, as is everything before it
_WHY_UNREADABLE: Final = {HoleCode.NO_PERMISSION: "permission denied", HoleCode.IO_ERROR: "input/output error"}


def finding_code_inside(kind: int, code: int) -> str:
    """Return the finding's code for a range that is no message, with good records after it."""
    if kind == FrameKind.DAMAGE:
        return _DAMAGE_BY_CODE.get(FrameCode(code), ("L002", ""))[0]
    if kind == FrameKind.HOLE and code != HoleCode.NO_FILE:
        return UNREADABLE
    return {FrameKind.ZEROS: "L003", FrameKind.STALE: "L005", FrameKind.HOLE: MISSING}[FrameKind(kind)]


def is_missing_file(kind: int, code: int, file: str) -> bool:
    """Return True for a whole missing file, False for the missing end of one."""
    return kind == FrameKind.HOLE and code == HoleCode.NO_FILE and not file


class LogFindings:
    """Converts frame tables, given in log order, to findings.

    A range that may be the torn tail is held until something good follows or the log ends. Lists are bounded; the
    rest is counted and reported in one last finding for each code. Segments walked at the same time have one of these
    each, joined in log order afterwards.

    ``log`` is the walked log; it shows which ranges a broker has removed from its start meanwhile.
    """

    def __init__(self, log: SegmentSequence | None = None, *, writes_pages: bool = False) -> None:
        self._writes_pages = writes_pages  # with writeWithoutMmap, old bytes fill the page after the last record
        self._found = Findings()
        self._begin = None if log is None else Begin(log)
        self._removed: list[range] = []  # ranges of the log
        self._saw_good = False
        self._held: list[
            tuple[int, int, int, int, str]
        ] = []  # kind, code, offset, size, file of ranges that may be the tail

    @property
    def counts(self) -> Counter[str]:
        """The number of findings of each code, including those beyond the bound."""
        return self._found.counts

    @property
    def listed(self) -> list[Finding]:
        """The findings so far, without those beyond the bound."""
        return self._found.listed

    def add(self, table: FrameTable, file: str) -> None:
        """Add the frames of a table; ``file`` is the segment, relative to the store root."""
        if table.is_good:
            if len(table):
                self._good()
            return
        good = table.messages & table.of_code(FrameCode.OK)
        goods = good.nonzero()[0]
        others = (~good & ~table.of_kind(FrameKind.BLANK)).nonzero()[0]
        seen = 0
        columns = (others, goods.searchsorted(others), *(c[others] for c in _range_columns(table)))
        for row, before, kind, code, at, size in zip(*(column.tolist() for column in columns), strict=True):
            if before > seen:
                self._good()
                seen = before
            if kind != FrameKind.MESSAGE:
                self._hold_or_report(kind, code, at, size, file)
            elif not self._only_counted(code):
                self._record(_frame_row(table, row), file)
        if len(goods) > seen:
            self._good()

    def add_rows(self, rows: Iterable[FrameRow], file: str) -> None:
        """Add frames of a walk in runs, as ``add`` does."""
        for row in rows:
            if row.kind == FrameKind.MESSAGE and row.code == FrameCode.OK:
                self._good()
            elif row.kind == FrameKind.MESSAGE:
                if not self._only_counted(row.code):
                    self._record(row, file)
            elif row.kind != FrameKind.BLANK:
                self._hold_or_report(*row[:4], file)

    def join(self, following: LogFindings) -> None:
        """Add the findings of the following segment."""
        if following._saw_good:
            self._good()
        for found in following._found.listed:
            self._found.add(found)
        self.counts.update({code: n - min(n, MOST_FINDINGS_PER_CODE) for code, n in following.counts.items()})
        for removed in following._removed:
            self._add_removed(removed)
        self._held += following._held

    def hole(self, phy_offset: int, size_bytes: int) -> None:
        """Add a range of the log without a file."""
        self._held.append((FrameKind.HOLE, FrameCode.OK, phy_offset, size_bytes, ""))

    def _only_counted(self, code: int) -> bool:
        """Count a faulty record if its code's list is full, and return True; there may be millions. Else return
        False.
        """
        finding_code = _BY_FRAME_CODE[code][0]
        if not self._found.is_full(finding_code):
            return False
        self._good()
        self.counts[finding_code] += 1
        return True

    def _record(self, row: FrameRow, file: str) -> None:
        """Report a record with a fault."""
        self._good()
        finding_code, text = _BY_FRAME_CODE[row.code]
        self._report(
            finding_code,
            text.format(own_phy_offset=row.own_phy_offset),
            file,
            row.phy_offset,
            row.size_bytes,
            topic=row.topic.decode("utf-8", "replace"),
            queue_id=row.queue_id,
            queue_offset=row.queue_offset,
        )

    def _hold_or_report(self, kind: int, code: int, at: int, size: int, file: str) -> None:
        """Report old records; hold any other range without records."""
        if kind == FrameKind.STALE:
            is_dirt = self._writes_pages and at + size <= page_end(at)
            severity: Severity | None = "info" if is_dirt else None
            text = f"{size} bytes of old records after the tail"
            self._found.say("L005", text, file=file, phy_offset=at, size_bytes=size, severity=severity)
        else:
            self._held.append((kind, code, at, size, file))

    def _good(self) -> None:
        """Note a good record: the held ranges are damage inside the log."""
        self._saw_good = True
        for kind, code, at, size, file in self._held:
            if kind == FrameKind.ZEROS:
                self._report("L003", f"{size} zero bytes inside the log", file, at, size)
            elif kind == FrameKind.HOLE:
                self._report_hole(code, at, size, file)
            else:
                finding_code, text = _DAMAGE_BY_CODE.get(FrameCode(code), ("L002", f"{size} bytes that are no record"))
                self._report(finding_code, text, file, at, size)
        self._held.clear()

    def good_after(self) -> None:
        """Note that the log continues after the walked part: damage at that part's end is no tail."""
        self._good()

    @property
    def may_be_torn(self) -> bool:
        """True if the last frames are damage or a missing file: perhaps a tail that a broker is writing."""
        return any(
            kind == FrameKind.DAMAGE or is_missing_file(kind, code, file) for kind, code, _, _, file in self._held
        )

    def put_back(self) -> int | None:
        """Forget the held ranges, and return the start of the first; None without any. A later walk reads them again."""
        start = self._held[0][2] if self._held else None
        self._held.clear()
        return start

    def end(self, *, live: bool = False, log_goes_on: bool = False) -> list[Finding]:
        """Report the held ranges as the log's tail, and return all findings.

        * ``live``: a broker may be writing the tail, so damage there is no finding. It makes files ahead, and removes
          them one by one when it starts, so a missing one is no finding either.
        * ``log_goes_on``: only the walked part has ended; damage at its end is no tail.
        * A last write may have ended in the segment of the last good record or in the next one; damage in later
          segments is not from a last write.
        """
        damaged = dict.fromkeys(file for kind, _, _, _, file in self._held if kind == FrameKind.DAMAGE)
        of_the_tail = set(islice(damaged, _TAIL_SEGMENTS))
        for kind, code, at, size, file in self._held:
            if kind == FrameKind.HOLE:
                if log_goes_on or not (live and is_missing_file(kind, code, file)):
                    self._report_hole(code, at, size, file)
            elif kind == FrameKind.DAMAGE and (log_goes_on or not (live or file in of_the_tail)):
                finding_code, text = _DAMAGE_BY_CODE.get(FrameCode(code), ("L002", f"{size} bytes that are no record"))
                self._report(finding_code, text, file, at, size)
            elif kind == FrameKind.DAMAGE and not live:
                self._report("L004", f"{size} bytes after the last whole record", file, at, size)
        self._held.clear()
        for gone in self._removed:
            text = f"{len(gone)} bytes of the log went away while it was read"
            self._report(REMOVED, text, None, gone.start, len(gone))
        self._removed.clear()
        return self._found.all()

    def _add_removed(self, removed: range) -> None:
        """Keep a removed range for ``end``; adjacent ones are joined."""
        if self._removed and self._removed[-1].stop == removed.start:
            removed = range(self._removed.pop().start, removed.stop)
        self._removed.append(removed)

    def _report_hole(self, code: int, at: int, size: int, file: str) -> None:
        if code == HoleCode.NO_FILE and self._begin is not None and self._begin.has_passed(at + size):
            self._add_removed(range(at, at + size))
        elif code == HoleCode.NO_FILE and file:
            self._report(MISSING, f"the file lacks its last {size} bytes", file, at, size)
        elif code == HoleCode.NO_FILE:
            self._report(MISSING, f"no file for {size} bytes of the log", None, at, size)
        else:
            self._report(UNREADABLE, f"{size} bytes cannot be read: {_WHY_UNREADABLE[HoleCode(code)]}", file, at, size)

    def _report(
        self,
        code: str,
        message: str,
        file: str | None,
        at: int,
        size: int,
        *,
        topic: str | None = None,
        queue_id: int | None = None,
        queue_offset: int | None = None,
    ) -> None:
        self._found.say(
            code,
            message,
            file=file,
            phy_offset=at,
            size_bytes=size,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
        )


def _range_columns(table: FrameTable) -> tuple[Ints, ...]:
    return table.kind, table.code, table.phy_offset, table.size_bytes


def _frame_row(table: FrameTable, row: int) -> FrameRow:
    columns = _range_columns(table)
    queues = table.own_phy_offset, table.queue_id, table.queue_offset
    topic = table.topic(row) if table.kind[row] == FrameKind.MESSAGE else b""
    return FrameRow._make([*(int(column[row]) for column in (*columns, *queues)), topic])
