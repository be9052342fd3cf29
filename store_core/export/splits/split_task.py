"""Walk one split, write its rows, and return a piece that can be joined with its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.log import LogFindings
from store_core.check.report import MOST_FINDINGS_PER_CODE
from store_core.errors import PlanOutOfDateError, UnreadableError
from store_core.export import task_progress as meter
from store_core.export.dest.parts import Part, PartWriter, Range, inside, quarantine_rows
from store_core.export.dest.state import Proof
from store_core.export.dest.writing import MessageWriter
from store_core.export.splits.chain import is_led_to
from store_core.export.splits.plan import EXPORT_ANEW, Split, Task, segments_of
from store_core.export.splits.tail import as_read, is_followed, is_settled, proof_of, refuse_another_log, still_holds
from store_core.findings import Finding
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.record import MAX_RECORD_SIZE_BYTES
from store_core.scan.frames import ROW_COLUMNS, FrameTable, Ints
from store_core.scan.io_errors import refused_stretches
from store_core.scan.log import ScanOptions, scan_segment
from store_core.storage.buffers import KEPT
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.settings import Settings
from store_core.storage.store import Store


def unreadable_stretches(
    log: SegmentSequence, segment: Segment, file: str, error: UnreadableError, stop: int
) -> list[Range]:
    """Return the ranges of ``refused_stretches`` as ranges of a segment's ``file``."""
    return [Range(*row[:4], file) for row in refused_stretches(log, segment, error, stop)]


_OPTIONS: Final = ScanOptions(check_crc=True, check_property_crc=True, properties=False)
_RANGES_AT_ONCE: Final = 10_000
_MAX_REFUSED_RANGES: Final = 10_000  # unreadable ranges of a split; with more, the task fails


@dataclass(slots=True)
class Piece:
    """The outcome of one split. Frames are records and blanks; offsets are bytes in the log.

    * ``first_phy_offset``: the start of the first frame, None without frames; ``next_phy_offset``: the end of the
      last one.
    * ``head`` and ``tail``: ranges without frames before the first and after the last message.
    * ``found``: findings between these two.
    * ``ran_over``: a range without frames continues after the split.
    * ``bodies``: the first findings about bodies; ``bodies_beyond``: how many more there are.
    * ``proof``: the last message, and a blank after it.
    * ``withheld``: a last message that may still change is left out.
    * ``refused``: a range was unreadable, and may be readable the next time.
    * ``lacking``: ranges for which the task saw no file.
    """

    split: Split
    first_phy_offset: int | None = None
    next_phy_offset: int | None = None
    rows: int = 0
    walked_bytes: int = 0
    head: list[Range] = field(default_factory=list)
    tail: list[Range] = field(default_factory=list)
    has_messages: bool = False
    ran_over: bool = False
    found: LogFindings = field(default_factory=LogFindings)
    bodies: list[Finding] = field(default_factory=list)
    bodies_beyond: int = 0
    parts: list[Part] = field(default_factory=list)
    proof: tuple[Proof, ...] = ()
    withheld: bool = False
    refused: bool = False
    lacking: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        """True if a repeated task would give the same result."""
        return not (self.withheld or self.refused or self.lacking)


def run_task(task: Task) -> Piece:
    """Export one split to the task's place. Raises StoreError, and then leaves no file."""
    if task.led is not None:
        _assert_led(task, task.led)
    piece = run_work(lambda settled: SplitWork(task, settled), task.settings)
    piece.walked_bytes += task.size_bytes - task.split.size_bytes
    return piece


def _assert_led(task: Task, way: Split) -> None:
    with Store.open(task.settings.root, task.settings) as store:
        refuse_another_log(store, task.landmarks)
        if not is_led_to(store, way.stop_phy_offset):
            raise PlanOutOfDateError(
                f"the log of {task.store} no longer leads to the record at {way.stop_phy_offset} that was exported last",
                path=str(store.root),
                to_do=f"it has been cut before that and written on: {EXPORT_ANEW}",
            )
    meter.walked(way.size_bytes)


def run_work(work_of: Callable[[int], SplitWork], settings: Settings) -> Piece:
    """Walk a split, and start again with new work when needed.

    That is when the log grew after a record was taken for its last, and when a range of the log turns out to be
    unreadable.
    """
    settled = 0
    refused: list[Range] = []
    while True:
        work = work_of(settled)
        try:
            with Store.open(settings.root, settings) as store:
                work.walk_split(store, refused)
            return work.finished()
        except _LogGrew as grown:
            work.abort()
            settled = grown.phy_offset
        except _RefusedError as error:
            work.abort()
            refused = _with_new_refused(refused, error)
        except BaseException:
            work.abort()
            raise


class _LogGrew(Exception):
    """The broker has appended: everything before ``phy_offset`` is settled, and must be read again."""

    def __init__(self, phy_offset: int) -> None:
        super().__init__(phy_offset)
        self.phy_offset = phy_offset


class _RefusedError(Exception):
    """Some ranges are unreadable; ``why`` is the first read error."""

    def __init__(self, stretches: list[Range], why: UnreadableError) -> None:
        super().__init__(str(why))
        self.stretches, self.why = stretches, why


def _with_new_refused(refused: list[Range], error: _RefusedError) -> list[Range]:
    """Add newly found unreadable ranges. Raises the read error if they overlap known ones, or there are too many."""
    repeated = {known_range for new in error.stretches for known_range in refused if _touch(new, known_range)}
    if repeated or len(refused) > _MAX_REFUSED_RANGES:
        raise error.why
    return sorted([*refused, *error.stretches], key=lambda known_range: known_range.phy_offset)


def _touch(first: Range, second: Range) -> bool:
    return first.phy_offset < second.end_phy_offset and second.phy_offset < first.end_phy_offset


class SplitWork:
    """The walk over one split. No message before ``settled`` is withheld.

    Subclasses override ``take`` and ``take_ranges`` to use messages, and the ranges between them, in another way.
    """

    def __init__(self, task: Task, settled: int) -> None:
        self._task = task
        self._settled = settled
        self._piece = Piece(task.split)
        self._keep_from = task.wanted.from_phy_offset or 0
        self._messages = MessageWriter(task.place, task.store, task.stem, task.layout, task.split.size_bytes)
        self._quarantine: PartWriter | None = None
        self._pending_ranges: list[Range] = []  # ranges without frames since the last message
        self._inner_ranges: list[Range] = []
        self._read_after_last: list[Proof] = []  # bytes that were read after the last message

    def walk_split(self, store: Store, refused: Sequence[Range] = ()) -> None:
        """Walk all segments of the split.

        Segments that were removed since the planning count as holes, and so do the unreadable ranges ``refused``, in
        log order.
        """
        refuse_another_log(store, self._task.landmarks)
        split = self._task.split
        at = split.start_phy_offset
        for segment, end in segments_of(store.log, split):
            stop = min(end, split.stop_phy_offset)
            self._add_hole(at, segment.phy_offset)
            at = max(at, segment.phy_offset)
            within = [found for found in refused if at < found.end_phy_offset and found.phy_offset < end]
            try:
                self._walk_segment(store, segment, at, stop, within)
            except UnreadableError as error:
                file, reach = store.relative(segment.path), stop + MAX_RECORD_SIZE_BYTES
                raise _RefusedError(unreadable_stretches(store.log, segment, file, error, reach), error) from error
            at = stop
        self._add_hole(at, split.stop_phy_offset)

    def _walk_segment(self, store: Store, segment: Segment, at: int, stop: int, refused: Sequence[Range]) -> None:
        """Walk the readable parts of a segment up to ``stop``; a frame must end before the next unreadable range."""
        is_chained, file = self._task.split.exact, store.relative(segment.path)
        for found in refused:
            if at < min(found.phy_offset, stop):
                short = replace(segment, size_bytes=found.phy_offset - segment.phy_offset)
                until = min(found.phy_offset, stop)
                tables = scan_segment(store, short, _OPTIONS, at, until, chained=is_chained)
                self._walk(self._as_far_as_settled(tables, store.log, segment), file, until)
            if found.phy_offset < stop:
                self._add_refused(found, stop)
            at, is_chained = found.end_phy_offset, False
        if at < stop:
            tables = scan_segment(store, segment, _OPTIONS, at, stop, chained=is_chained, buffers=KEPT)
            self._walk(self._as_far_as_settled(tables, store.log, segment), file, stop)

    def _as_far_as_settled(
        self, tables: Iterator[FrameTable], log: SegmentSequence, segment: Segment
    ) -> Iterator[FrameTable]:
        return self._settled_tables(tables, log, segment) if self._task.live else tables

    def _add_refused(self, found: Range, stop: int) -> None:
        self._piece.refused = True
        self._piece.ran_over |= found.end_phy_offset > stop
        start = max(found.phy_offset, self._task.split.start_phy_offset, self._keep_from)
        end = min(found.end_phy_offset, stop)
        if start < end:
            self._pending_ranges.append(found._replace(phy_offset=start, size_bytes=end - start))

    def _add_hole(self, start: int, end: int) -> None:
        start = max(start, self._keep_from)
        if start < end:
            self._piece.lacking.append((start, end))
            self._pending_ranges.append(Range(FrameKind.HOLE, FrameCode.OK, start, end - start, ""))

    def _settled_tables(
        self, tables: Iterator[FrameTable], log: SegmentSequence, segment: Segment
    ) -> Iterator[FrameTable]:
        """Yield the tables of a live log, up to the last record that cannot change any more."""
        may_change = not is_followed(log, segment)
        for table in tables:
            messages = np.flatnonzero(table.messages)
            last = int(messages[-1]) if len(messages) else -1
            at = int(table.phy_offset[last])
            if last >= 0:
                if self._piece.withheld or not all(still_holds(log, read) for read in self._read_after_last):
                    raise _LogGrew(at)
                self._read_after_last.clear()
            if not may_change:
                yield table
                continue
            stop = last + 1
            if last >= 0 and at >= self._settled:
                self._piece.withheld = not is_settled(log, table, last)
                stop -= self._piece.withheld
                if stop and not still_holds(log, as_read(table, 0, stop)):  # the broker wrote the rest after the read
                    raise _LogGrew(int(table.phy_offset[stop - 1]) + 1)
            if not self._piece.withheld:
                if last + 1 < len(table):
                    self._read_after_last.append(as_read(table, last + 1, len(table)))
                yield table
            elif stop:
                yield _slice_of(table, 0, stop)

    def _walk(self, tables: Iterator[FrameTable], file: str, stop: int) -> None:
        """Take the tables of one segment; ranges are cut at ``stop``."""
        for table in tables:
            if not table.kind.any() and table.phy_offset[0] >= self._keep_from:
                self._take_in_plain(table, file)
                continue
            is_range = (table.kind != FrameKind.MESSAGE) & (table.kind != FrameKind.BLANK)
            self._note_frames(table, np.flatnonzero(~is_range))
            messages = np.flatnonzero(table.messages & (table.phy_offset >= self._keep_from))
            if len(messages):
                first, last = int(messages[0]), int(messages[-1])
                self._add_ranges(table, is_range, 0, first, file, stop)
                self._close_ranges()
                self._piece.has_messages = True
                self._add_messages(_slice_of(table, first, last + 1), is_range[first : last + 1], file)
                self._add_ranges(table, is_range, last + 1, len(table), file, stop)
            else:
                self._add_ranges(table, is_range, 0, len(table), file, stop)

    def _take_in_plain(self, table: FrameTable, file: str) -> None:
        """Take a table of messages only, as most are. It is quicker than the general case of ``_walk``."""
        self._note_frames(table, np.array([0, len(table) - 1]))
        self._close_ranges()
        self._piece.has_messages = True
        self._piece.found.add(table, file)
        self.take(table, np.flatnonzero(self._task.wanted.rows(table)), file)

    def finished(self) -> Piece:
        self._flush_inside()
        piece = self._piece
        if piece.has_messages:
            piece.tail = self._pending_ranges
        else:
            piece.head = self._pending_ranges
        piece.parts = self._messages.close()
        if self._quarantine is not None:
            piece.parts.append(self._quarantine.close())
        return piece

    def abort(self) -> None:
        self._messages.abort()
        if self._quarantine is not None:
            self._quarantine.abort()

    def _note_frames(self, table: FrameTable, rows: Ints) -> None:
        """Count the bytes walked and note first frame, last frame and proof.

        ``rows``: the rows of frames; in a table of messages only, the first and the last row.
        """
        piece = self._piece
        size_bytes = int(table.size_bytes[table.kind != FrameKind.HOLE].sum())
        for row in np.flatnonzero(table.kind == FrameKind.ZEROS):  # zeros may reach past the split, unread
            end = int(table.phy_offset[row] + table.size_bytes[row])
            size_bytes -= max(end - self._task.split.stop_phy_offset, 0)
        piece.walked_bytes += size_bytes
        meter.walked(size_bytes)
        if len(rows):
            if piece.first_phy_offset is None:
                piece.first_phy_offset = int(table.phy_offset[rows[0]])
            piece.next_phy_offset = int(table.phy_offset[rows[-1]] + table.size_bytes[rows[-1]])
            piece.proof = proof_of(table, rows, piece.proof)

    def _add_ranges(
        self, table: FrameTable, is_range: NDArray[np.bool_], first: int, last: int, file: str, stop: int
    ) -> None:
        for row in first + np.flatnonzero(is_range[first:last]):
            start = max(int(table.phy_offset[row]), self._keep_from)
            end = int(table.phy_offset[row] + table.size_bytes[row])
            self._piece.ran_over |= end > stop
            end = min(end, stop)
            if start < end:
                if table.kind[row] == FrameKind.HOLE:
                    self._piece.lacking.append((start, end))
                self._pending_ranges.append(Range(int(table.kind[row]), int(table.code[row]), start, end - start, file))

    def _close_ranges(self) -> None:
        """File the collected ranges when a message follows: before the first message, or between two."""
        if not self._piece.has_messages:
            self._piece.head = self._pending_ranges
        else:
            for found in self._pending_ranges:
                self._piece.found.add(range_as_table(found), found.file)
            self._inner_ranges += self._pending_ranges
        self._pending_ranges = []

    def _add_messages(self, table: FrameTable, is_range: NDArray[np.bool_], file: str) -> None:
        """Take rows that start and end with a message, and the ranges between."""
        self._piece.found.add(table, file)
        for row in np.flatnonzero(is_range):
            kind, code, at, size = (
                int(column[row]) for column in (table.kind, table.code, table.phy_offset, table.size_bytes)
            )
            self._inner_ranges.append(Range(kind, code, at, size, file))
        if len(self._inner_ranges) > _RANGES_AT_ONCE:
            self._flush_inside()
        self.take(table, np.flatnonzero(self._task.wanted.rows(table)), file)

    def take(self, table: FrameTable, rows: Ints, file: str) -> None:
        """Write wanted messages, in log order; ``rows`` are row numbers of a table."""
        for found in self._messages.write(table, rows):
            if len(self._piece.bodies) < MOST_FINDINGS_PER_CODE:
                self._piece.bodies.append(replace(found, file=file))
            else:
                self._piece.bodies_beyond += 1
        self._piece.rows += len(rows)

    def _flush_inside(self) -> None:
        if self._inner_ranges:
            self.take_ranges(self._inner_ranges)
            self._inner_ranges = []

    def take_ranges(self, ranges: Sequence[Range]) -> None:
        """Write ranges without frames between messages to the quarantine, in log order."""
        if self._quarantine is None:
            name = f"{self._task.stem}-{ranges[0].phy_offset:020d}.parquet"
            self._quarantine = PartWriter(self._task.place, "quarantine", self._task.store, name)
        self._quarantine.write(quarantine_rows(self._task.store, inside(ranges)))


def range_as_table(found: Range) -> FrameTable:
    """Return a range as a table of one row, as the scan would."""
    values: dict[str, Any] = {**found._asdict(), "topic_id": -1}
    columns: dict[str, Any] = {name: np.array([values.get(name, 0)], np.int64) for name in ROW_COLUMNS}
    empty = np.zeros(0, np.int64)
    return FrameTable(memoryview(b""), found.phy_offset, (), **columns, key_row=empty, key_hash=empty)


def _slice_of(table: FrameTable, first: int, last: int) -> FrameTable:
    """Return consecutive rows of a table."""
    if first == 0 and last == len(table):
        return table
    columns = {name: getattr(table, name)[first:last] for name in ROW_COLUMNS}
    return replace(table, **columns, odd_count=None)
