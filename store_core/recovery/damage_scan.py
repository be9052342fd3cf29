"""Walk the log once: count good records and find the regions that a broker cannot walk over."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from sys import intern

import numpy as np

from store_core.check.log import LogFindings
from store_core.findings import Finding
from store_core.kernel.codes import SCHEDULE_TOPIC, FrameCode, FrameKind, PropertyFlag
from store_core.layout.record import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MAGIC_V2,
    MIN_RECORD_SIZE_BYTES,
    PREFIX,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from store_core.recovery.lost_record import LostRecord, from_record_head
from store_core.recovery.lost_table import InLogOrder, LostTable, head_rows
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, nominal_end, scan_log
from store_core.storage.store import Store

TableSink = Callable[[FrameTable], None]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class WalkRules:
    """The rules by which the broker that will open the store accepts and writes records.

    ``checks_property_crc``: the broker takes a wrong property CRC for damage. ``property_crc``: new records carry one.
    ``refused``: offsets of whole records that must not stay: the broker cannot make a queue of their topic and gives up on all queues.
    """

    reads_v2: bool = True
    reads_v6_hosts: bool = True
    reads_batches: bool = True
    checks_property_crc: bool = False
    property_crc: bool = False
    refused: tuple[int, ...] = ()

    @property
    def takes_all(self) -> bool:
        """True if the broker walks over every good record."""
        return self.reads_v2 and self.reads_v6_hosts and not self.checks_property_crc and not self.refused


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A good record next to a region. ``in_queue``: its transaction type gives it a queue entry."""

    phy_offset: int
    size_bytes: int
    store_timestamp_ms: int
    topic: str
    queue_id: int
    queue_offset: int
    in_queue: bool


@dataclass(slots=True)
class Region:
    """A range [phy_offset, end_phy_offset) inside one segment's nominal extent that a broker cannot walk over.

    ``reaches_segment_end``: nothing good follows in the segment, not even its blank. ``used_bytes`` of it are not known
    to be zero. ``lost`` are records whose own head still identifies them, except those in ``LogSurvey.heads``.
    """

    phy_offset: int
    end_phy_offset: int
    segment_phy_offset: int
    segment_end_phy_offset: int
    reaches_segment_end: bool = False
    before: Neighbour | None = None
    after: Neighbour | None = None
    blank_follows: bool = False
    used_bytes: int = 0
    lost: list[LostRecord] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return self.end_phy_offset - self.phy_offset

    @property
    def may_hold_records(self) -> bool:
        """False if the region can only have been the segment's blank."""
        return not (self.reaches_segment_end and self.used_bytes <= PREFIX.size_bytes)


@dataclass(slots=True)
class LogSurvey:
    """The log after one walk.

    ``blanks`` are those with room for a record. ``regions`` have good records after them. ``tail`` are the regions after the last good record: torn, wiped or stale
    bytes, zeros included. ``end_phy_offset`` is the end of the last good record, where the next one belongs; the log's
    minimum if there is none. ``messages`` are all whole records, ``good_messages`` those that a broker walks over,
    ``kept_messages`` the good ones that belong in queues. ``wrong_own_offsets`` are good records whose own offset names another place.
    ``heads`` are lost records with a damaged body and a sound head.
    """

    regions: list[Region] = field(default_factory=list)
    tail: list[Region] = field(default_factory=list)
    blanks: list[Region] = field(default_factory=list)
    messages: int = 0
    good_messages: int = 0
    kept_messages: int = 0
    end_phy_offset: int = 0
    last_store_timestamp_ms: int = 0
    last_phy_offset: int = 0
    wrong_own_offsets: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    heads: InLogOrder | None = None

    @property
    def is_whole(self) -> bool:
        """True if a broker walks over every record in the log."""
        return not self.regions and self.good_messages == self.messages


def survey_log(
    store: Store,
    sinks: tuple[TableSink, ...] = (),
    *,
    rules: WalkRules | None = None,
    options: ScanOptions | None = None,
    on_progress: Callable[[int], None] | None = None,
    lost: LostTable | None = None,
) -> LogSurvey:
    """Walk the whole log with checksums and pass every table to each of ``sinks``, which may need ``options``.

    Lost records are added to ``lost`` if it is given.
    Raises FailedError where a segment cannot be read.
    """
    rules = rules or WalkRules()
    surveyor = _Surveyor(store, rules, lost)
    options = replace(
        options or ScanOptions(), check_crc=True, check_property_crc=rules.checks_property_crc, check_numbers=True
    )
    for table in scan_log(store, options=options, on_progress=on_progress):
        surveyor.add(table)
        for sink in sinks:
            sink(table)
    return surveyor.end()


def _runs(mask: Mask) -> dict[int, int]:
    """Return the last row of each run in a mask by its first row."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return dict(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))


def _foreign_rows(table: FrameTable, rules: WalkRules) -> Mask:
    """Return a mask of whole records that the broker refuses: of unknown kinds, or with properties that are no numbers."""
    mask = np.zeros(len(table), bool)
    if not rules.reads_v2:
        mask |= table.magic == MAGIC_V2
    if not rules.reads_v6_hosts:
        mask |= (table.sys_flag & (FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)) != 0
    if rules.refused:
        mask |= np.isin(table.phy_offset, rules.refused)
    refused = table.of_code(FrameCode.BAD_NUMBER)
    if not rules.reads_batches:
        levels = [number for number, topic in enumerate(table.topics) if topic == SCHEDULE_TOPIC]
        refused = refused & np.isin(table.topic_id, levels)
    return (mask | refused) & table.messages


class _Surveyor:
    def __init__(self, store: Store, rules: WalkRules, lost: LostTable | None) -> None:
        self._store = store
        self._rules = rules
        self._lost = lost
        heads = lost.in_log_order() if lost is not None else None
        self._survey = LogSurvey(end_phy_offset=store.log.min_phy_offset, heads=heads)
        self._findings = LogFindings()
        self._pending: list[Region] = []
        self._open: Region | None = None
        self._before: Neighbour | None = None
        self._saw_property_crc = False
        self._segment_end = -1
        self._segment_start = -1

    def add(self, table: FrameTable) -> None:
        if not len(table):
            return
        self._findings.add(table, self._file(int(table.phy_offset[0])))
        if table.is_good and self._rules.takes_all:
            self._add_good(table)
            return
        good = self._good_rows(table)
        walkable = good | table.of_kind(FrameKind.BLANK)
        self._survey.messages += int(np.count_nonzero(table.messages))
        self._survey.good_messages += int(np.count_nonzero(good))
        type_ = table.sys_flag & TRANSACTION_MASK
        queued = good & ((type_ == TRANSACTION_NONE) | (type_ == TRANSACTION_COMMIT))
        self._survey.kept_messages += int(np.count_nonzero(queued))
        self._survey.wrong_own_offsets += table.phy_offset[good & table.of_code(FrameCode.OWN_OFFSET)].tolist()
        for row in table.rows(table.of_kind(FrameKind.BLANK) & (table.size_bytes > MIN_RECORD_SIZE_BYTES)):
            self._survey.blanks.append(self._blank(int(table.phy_offset[row]), int(table.size_bytes[row])))
        # Rows where something changes: everything not walkable, and the first walkable row after it.
        edges = ~walkable
        edges[1:] |= ~walkable[:-1]
        edges[0] = edges[-1] = True
        if size := self._store.log.file_size_bytes:  # a record that ends with the segment leaves no room for the blank
            edges |= good & ((table.phy_offset + table.size_bytes) % size == 0)
        heads = self._note_heads(table, ~walkable)
        last_of = _runs(heads)
        edges[1:] &= ~(heads[1:] & heads[:-1])  # the first row of a run covers the whole run
        previous = -1
        for row in table.rows(edges):
            if row > previous + 1:
                self._note_good(table, row - 1)
            previous = last_of.get(row, row)
            self._row(
                table, row, previous, good=bool(good[row]), walkable=bool(walkable[row]), is_noted=bool(heads[row])
            )

    def _add_good(self, table: FrameTable) -> None:
        """Add a table of good records of one segment; only its first and its last row can change the state."""
        count = len(table)
        type_ = table.sys_flag & TRANSACTION_MASK
        self._survey.messages += count
        self._survey.good_messages += count
        self._survey.kept_messages += int(np.count_nonzero((type_ == TRANSACTION_NONE) | (type_ == TRANSACTION_COMMIT)))
        for row in sorted({0, count - 1}):
            self._row(table, row, row, good=True, walkable=True, is_noted=False)

    def _note_heads(self, table: FrameTable, bad: Mask) -> Mask:
        """Add lost records with a wrong body and a sound head to ``heads`` and return the mask of their rows."""
        mask = np.zeros(len(table), bool)
        if self._lost is not None and self._survey.heads is not None and bad.any():
            type_ = table.sys_flag & TRANSACTION_MASK
            mask = bad & table.messages & table.of_code(FrameCode.BAD_CRC)
            mask &= (type_ == TRANSACTION_NONE) | (type_ == TRANSACTION_COMMIT)
            mask &= ~table.with_property(PropertyFlag.CRC32)  # a repair may still satisfy the property CRC
            rows = np.flatnonzero(mask)
            if len(rows):
                self._survey.heads.add(head_rows(self._lost, table, rows))
        return mask

    def _good_rows(self, table: FrameTable) -> Mask:
        """Return a mask of the message rows that the broker's recovery accepts.

        If it checks property CRCs, a record without one is damaged once an earlier record had one; records from before
        the option was turned on are left to the broker.
        """
        mask: Mask = table.messages & ~table.of_code(FrameCode.BAD_CRC) & ~_foreign_rows(table, self._rules)
        if self._rules.checks_property_crc:
            has_crc = table.messages & table.with_property(PropertyFlag.CRC32)
            seen = np.logical_or.accumulate(has_crc) | self._saw_property_crc
            self._saw_property_crc = bool(seen[-1])
            mask &= ~table.of_code(FrameCode.BAD_PROPERTY_CRC) & (has_crc | ~seen)
        return mask

    def _row(self, table: FrameTable, row: int, last: int, *, good: bool, walkable: bool, is_noted: bool) -> None:
        """Add a row, or a run of rows up to ``last`` of which none is walkable."""
        at = int(table.phy_offset[row])
        size = int(table.phy_offset[last] + table.size_bytes[last]) - at
        if at >= self._segment_end:
            self._enter_segment(at)
        if not walkable:
            self._not_walkable(table, row, at, size, is_noted=is_noted)
            return
        if self._open is not None:
            if good:
                self._open.after = neighbour_at(table, row)
            else:
                self._open.blank_follows = True
            self._open = None
        if good:
            self._note_good(table, row)
            if at + size >= self._segment_end:
                self._pending.append(self._region(at + size, at + size, reaches_segment_end=True))

    def _not_walkable(self, table: FrameTable, row: int, at: int, size: int, *, is_noted: bool) -> None:
        end = at + size
        while at < end:  # a hole may span several segments
            if at >= self._segment_end:
                self._enter_segment(at)
            part_end = min(end, self._segment_end)
            if self._open is None:
                self._open = self._region(at, part_end)
                self._pending.append(self._open)
            self._open.end_phy_offset = part_end
            self._open.used_bytes += part_end - at if table.kind[row] != FrameKind.ZEROS else 0
            at = part_end
        if is_noted or self._lost is None or self._open is None:
            return
        if table.kind[row] == FrameKind.MESSAGE and _in_queue(table, row):
            is_sound = table.code[row] in (FrameCode.OK, FrameCode.BAD_NUMBER)
            is_readable = is_sound and bool(_foreign_rows(table, self._rules)[row])
            self._open.lost.append(from_record_head(table.message(row), is_readable=is_readable))

    def _region(self, start: int, end: int, *, reaches_segment_end: bool = False) -> Region:
        return Region(start, end, self._segment_start, self._segment_end, reaches_segment_end, self._before)

    def _blank(self, at: int, size_bytes: int) -> Region:
        segment = self._store.log.find(at)
        start = segment.phy_offset if segment is not None else at
        return Region(at, at + size_bytes, start, at + size_bytes, reaches_segment_end=True)

    def _enter_segment(self, at: int) -> None:
        self._close_segment()
        size = self._store.log.file_size_bytes
        segment = self._store.log.find(at)
        self._segment_start = segment.phy_offset if segment is not None else at - at % size if size else at
        end = nominal_end(self._store.log, segment) if segment is not None else self._segment_start + size
        if segment is not None and at >= end:
            end = segment.end_phy_offset  # bytes after the nominal length of a segment that is too long are one range
        self._segment_end = max(end, at + 1)

    def _close_segment(self) -> None:
        """Extend the open region to the end of the segment that the walk leaves."""
        if self._open is not None:
            self._open.reaches_segment_end = True
            self._open = None

    def _note_good(self, table: FrameTable, row: int) -> None:
        """Move pending regions into the log, because a good record follows them; a blank does not count."""
        if table.kind[row] == FrameKind.BLANK:
            return
        self._survey.regions += self._pending
        self._pending.clear()
        neighbour = neighbour_at(table, row)
        self._before = neighbour
        self._survey.end_phy_offset = neighbour.phy_offset + neighbour.size_bytes
        self._survey.last_phy_offset = neighbour.phy_offset
        self._survey.last_store_timestamp_ms = max(self._survey.last_store_timestamp_ms, neighbour.store_timestamp_ms)

    def end(self) -> LogSurvey:
        self._close_segment()
        self._survey.tail = self._pending
        self._survey.findings = self._findings.end()
        return self._survey

    def _file(self, phy_offset: int) -> str:
        segment = self._store.log.find(phy_offset)
        return self._store.relative(segment.path) if segment is not None else ""


def neighbour_at(table: FrameTable, row: int) -> Neighbour:
    """Return a message row as a neighbour of regions."""
    return Neighbour(
        int(table.phy_offset[row]),
        int(table.size_bytes[row]),
        int(table.store_timestamp_ms[row]),
        intern(table.topic(row).decode("utf-8", "replace")),
        int(table.queue_id[row]),
        int(table.queue_offset[row]),
        _in_queue(table, row),
    )


def _in_queue(table: FrameTable, row: int) -> bool:
    return int(table.sys_flag[row]) & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)


class Ranges:
    """Ranges [start, end) of offsets, in any order; they may overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        by_start = sorted(ranges)
        self._starts = [start for start, _ in by_start]
        self._ends = [end for _, end in by_start]
        self._reach = [*accumulate((end for _, end in by_start), max)]

    def overlap(self, start: int, end: int) -> bool:
        """Return True if a range overlaps [start, end)."""
        before = bisect_left(self._starts, end)
        return before > 0 and start < self._reach[before - 1]

    def outside(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) outside all ranges, in order."""
        number = bisect_right(self._reach, start)
        while number < len(self._starts) and self._starts[number] < end:
            if start < self._starts[number]:
                yield start, self._starts[number]
            start = max(start, self._ends[number])
            number += 1
        if start < end:
            yield start, end
