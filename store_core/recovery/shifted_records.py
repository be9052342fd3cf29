"""Stretches of the log that lie some bytes beside their place: a copy that left out a page, or has one twice, moves all behind it.

No broker walks into such a stretch, and no walk of ours, as none of its records lies where it says, unless nothing but whole records
is missing, or there twice. Together they tell how far they were moved. A stretch goes back where nothing else can be read in its place
that does not go itself, and a queue's entry leads there; or where no entry leads elsewhere, several records follow each other, and
their times fit between those of the records in front of their place and behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from store_core.codec.record import body_crc_ok, possible_starts
from store_core.kernel.codes import FrameCode
from store_core.layout import record
from store_core.read.records import read_message, read_size_bytes
from store_core.recovery.damage_scan import LogSurvey
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.offset_ranges import Ranges
from store_core.scan.frames import FrameTable, Ints
from store_core.scan.log import nominal_end, scan_log
from store_core.storage.overlay import Borrowed, Patch
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import QueueKey, Store

_MOST_SHIFTS: Final = 1 << 14  # of one file
_MOST_STRETCHES: Final = 1 << 14  # of one file
_IDLE_BYTES: Final = 8 << 20  # without a record that was moved as far as those before
_FEWEST_RECORDS: Final = 2  # that vouch for each other
_ASKED: Final = 16  # records of a table whose entries are looked at
_WINDOW_SIZE_BYTES: Final = 4 << 20
Span = tuple[int, int]  # [start, end)


class Shift(NamedTuple):
    """``records`` that follow each other: what belongs at ``phy_offset`` lies at ``position`` of the file ``path``.

    ``source`` is what of it lies in the log, as far as a segment goes.
    """

    phy_offset: int
    size_bytes: int
    records: int
    source: Span
    path: Path
    position: int

    @property
    def home(self) -> Span:
        return self.phy_offset, self.phy_offset + self.size_bytes


@dataclass(slots=True)
class Shifted:
    """``zeros`` go over what is left where the records lay; ``put_back`` are the records for their own places, read where they lie."""

    shifts: list[Shift] = field(default_factory=list)
    zeros: dict[int, Patch] = field(default_factory=dict)
    put_back: dict[int, Patch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Records [start, end) for a span of the room, of which the last one begins at ``last``, to be moved ``by``. ``agree`` and ``differ``: to how many of
    those that were asked for their queue's entry leads, or not. The times are the first one's and the last one's."""

    span: int
    start: int
    last: int
    end: int
    by: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    records: int
    agree: int
    differ: int


class _Room:
    """Where records may go: holes, and the places of records that are not at home. No span reaches over a segment's end.

    ``looked_at`` is where a span's strays may begin: in the record in front, which may have lost its end to the first of them.
    """

    def __init__(self, log: SegmentSequence, survey: LogSurvey) -> None:
        beyond = ((s.end_phy_offset, nominal_end(log, s)) for s in log.segments)
        regions = [*survey.regions, *survey.tail]
        fronts = {r.phy_offset: r.before.phy_offset + 1 for r in regions if r.before is not None}
        self.holes = [
            *((r.phy_offset, r.end_phy_offset) for r in regions),
            *(span for span in beyond if span[0] < span[1]),
        ]
        strays = list(_runs((at, at + (read_size_bytes(log, at) or 0)) for at in survey.wrong_own_offsets))
        begins = {segment.phy_offset for segment in log.segments}
        self.strays = Ranges(strays)
        self.spans: list[Span] = []
        for start, end in sorted(chain(self.holes, strays)):
            if self.spans and start <= self.spans[-1][1] and start not in begins:
                self.spans[-1] = self.spans[-1][0], max(end, self.spans[-1][1])
            elif start < end:
                self.spans.append((start, end))
        self.looked_at = [fronts.get(start, start) for start, _ in self.spans]
        since = {r.phy_offset: r.before.store_timestamp_ms for r in regions if r.before is not None}
        until = {r.end_phy_offset: r.after.store_timestamp_ms for r in regions if r.after is not None}
        since |= {r.phy_offset: survey.last_store_timestamp_ms for r in survey.tail}
        self._times = [(since.get(start), until.get(end)) for start, end in self.spans]
        self._starts = np.array([start for start, _ in self.spans], np.int64)
        self._ends = np.array([end for _, end in self.spans], np.int64)

    def fits_in_time(self, stretch: _Stretch) -> bool:
        """Whether the times of records fit between those of the records around their span."""
        since, until = self._times[stretch.span]
        is_late = since is None or since <= stretch.first_timestamp_ms
        return is_late and (until is None or stretch.last_timestamp_ms <= until)

    def numbers(self, starts: Ints, ends: Ints) -> Ints:
        """The numbers of the spans that ranges lie in; -1 for one that lies in none."""
        number = np.searchsorted(self._starts, starts, "right") - 1
        found: Ints = np.where((number >= 0) & (ends <= self._ends[number]), number, -1)
        return found


def shifted(store: Store, survey: LogSurvey, taken: Ranges, untouched: Iterable[Path] = ()) -> Shifted:
    """Which records go where. ``taken``: what others have claimed of the log; files ``untouched`` are neither looked at nor written to.

    Single records of a file that lie over others where a broker walks are left to ``misdirected``. Raises FailedError where a segment cannot be read.
    """
    room = _Room(store.log, survey)
    left_alone = set(untouched)
    found: list[Shift] = []
    copies: list[Span] = []
    for segment, spans in _files(store.log, room).items():
        if segment.path in left_alone:
            continue
        shifts: list[Shift] = []
        for stretch in _stretches(store, segment, spans, room, copies):
            shift = _shift(store.log, segment, stretch)
            holder = store.log.find(shift.phy_offset)
            follows = bool(shifts) and shift.position == shifts[-1].position + shifts[-1].size_bytes
            are_several = follows or stretch.records >= _FEWEST_RECORDS
            is_vouched_for = not stretch.differ and are_several and room.fits_in_time(stretch)
            is_free = not (taken.overlap(*shift.home) or taken.overlap(*shift.source))
            is_free &= holder is None or holder.path not in left_alone
            if is_free and (stretch.agree or is_vouched_for):
                shifts.append(shift)
        if any(s.records >= _FEWEST_RECORDS or not room.strays.overlap(s.source[0], s.source[0] + 1) for s in shifts):
            found += shifts
    found = _with_room(found, room, copies)
    files = {path: store.log.alone(Segment(path, 0, _end_in(path, found))) for path in {s.path for s in found}}
    put_back: dict[int, Patch] = {
        s.phy_offset: Borrowed(0, s.size_bytes, log=files[s.path], phy_offset=s.position, path=s.path) for s in found
    }
    return Shifted(found, _zeros(found, room, copies), put_back)


def _with_room(shifts: list[Shift], room: _Room, copies: list[Span]) -> list[Shift]:
    """Those for whose records there is room once the others have gone; no place is given twice."""
    while True:
        free = Ranges([*room.holes, *copies, *(shift.source for shift in shifts)])
        left: list[Shift] = []
        end = -1
        for shift in sorted(shifts):
            if shift.phy_offset >= end and not any(free.outside(*shift.home)):
                left.append(shift)
                end = shift.home[1]
        if len(left) == len(shifts):
            return left
        shifts = left


def _zeros(shifts: list[Shift], room: _Room, copies: list[Span]) -> dict[int, Patch]:
    """Over what lies where the records lay, and where copies of others did that are in the way."""
    homes = Ranges(shift.home for shift in shifts)
    emptied = [*(shift.source for shift in shifts), *(copy for copy in copies if homes.overlap(*copy))]
    rest = Ranges(span for start, end in emptied for span in homes.outside(start, end))
    found: dict[int, Patch] = {}
    for start, end in room.spans if shifts else ():
        at = start
        for stop, following in (*rest.outside(start, end), (end, end)):
            if at < stop:
                found[at] = Patch(0, stop - at)
            at = following
    return found


def _end_in(path: Path, shifts: Iterable[Shift]) -> int:
    return max(shift.position + shift.size_bytes for shift in shifts if shift.path == path)


def _runs(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans in order as one where they join."""
    held: Span | None = None
    for start, end in spans:
        if held is not None and held[1] == start:
            held = held[0], end
            continue
        if held is not None:
            yield held
        held = start, end
    if held is not None:
        yield held


def _files(log: SegmentSequence, room: _Room) -> Mapping[Segment, list[Span]]:
    """The files that spans are in, and what of each of them to look at, by the positions in it."""
    found: dict[Segment, list[Span]] = {}
    for begin, (start, end) in zip(room.looked_at, room.spans, strict=True):
        segment = log.find(start)
        if segment is not None:
            # What was moved out at a file's end lies behind its usual length.
            stop = segment.end_phy_offset if end >= nominal_end(log, segment) else min(end, segment.end_phy_offset)
            begin = max(begin, segment.phy_offset)
            found.setdefault(segment, []).append((begin - segment.phy_offset, stop - segment.phy_offset))
    return found


def _stretches(
    store: Store, segment: Segment, spans: list[Span], room: _Room, copies: list[Span]
) -> Iterator[_Stretch]:
    """Records of a file for which there may be room. ``copies`` gets the places of those that are where they belong as well."""
    file = store.log.alone(Segment(segment.path, 0, segment.size_bytes))
    seen: set[int] = set()
    given: list[_Stretch] = []
    at = spans[0][0]
    while len(seen) < _MOST_SHIFTS and (told := _next_stray(file, segment.phy_offset, spans, at, seen)) is not None:
        at, by = told
        seen.add(by)
        doubles: list[Span] = []
        moved = Segment(segment.path, segment.phy_offset + by, segment.size_bytes)
        with store.with_log(store.log.alone(moved)) as view:
            begin, end = moved.phy_offset + at, moved.phy_offset + spans[-1][1]
            tables = _with_records(scan_log(view, from_phy_offset=begin, to_phy_offset=end))
            look = partial(_in_table, store, by=by, room=room, given=tuple(given), copies=doubles)
            for stretch in _joined(chain.from_iterable(map(look, tables))):
                if at == stretch.start - moved.phy_offset:  # its last one may have lost its end to what comes next
                    at = stretch.last - moved.phy_offset + 1
                given.append(stretch)
                yield stretch
                if len(given) == _MOST_STRETCHES:
                    return
        log_end = nominal_end(store.log, segment)
        copies += [(start, min(end, log_end)) for start, end in doubles if start < log_end]


def _next_stray(
    file: SegmentSequence, phy_offset: int, spans: Iterable[Span], at: int, seen: set[int]
) -> tuple[int, int] | None:
    """Where the next record of a file lies that says it belongs elsewhere, and how far off, if that is news."""
    for start, end in spans:
        at = max(at, start)
        while at < end:
            data_at = file.next_data(at)
            if data_at is None:
                return None
            at = max(at, data_at)
            data = file.read(at, min(_WINDOW_SIZE_BYTES, end - at))
            if len(data) < record.PREFIX.size_bytes:
                break
            reached = at
            for place in (at + start for start in possible_starts(data)):
                if place < reached:  # in another one's body
                    continue
                message = read_message(file, place)
                if message is None or message.own_phy_offset < 0 or not body_crc_ok(message):
                    continue
                by = message.own_phy_offset - phy_offset - place
                if by and by not in seen:
                    return place, by
                reached = place + message.size_bytes
            at = max(reached, at + len(data) - record.PREFIX.size_bytes + 1)  # a magic may be cut in two
    return None


def _with_records(tables: Iterable[FrameTable]) -> Iterator[FrameTable]:
    """Those in which some lie where they say, until there are none for a while."""
    reached = -1
    for table in tables:
        if (table.messages & table.of_code(FrameCode.OK)).any():
            reached = table.end_phy_offset
            yield table
        elif reached >= 0 and table.end_phy_offset - reached > _IDLE_BYTES:
            return


def _joined(stretches: Iterable[_Stretch]) -> Iterator[_Stretch]:
    """Stretches that follow each other as one."""
    held: _Stretch | None = None
    for stretch in stretches:
        if held is not None and (held.span, held.end) == (stretch.span, stretch.start):
            held = replace(
                held,
                last=stretch.last,
                end=stretch.end,
                last_timestamp_ms=stretch.last_timestamp_ms,
                records=held.records + stretch.records,
                agree=held.agree + stretch.agree,
                differ=held.differ + stretch.differ,
            )
            continue
        if held is not None:
            yield held
        held = stretch
    if held is not None:
        yield held


def _in_table(
    store: Store, table: FrameTable, *, by: int, room: _Room, given: Sequence[_Stretch], copies: list[Span]
) -> Iterator[_Stretch]:
    """What there may be room for, and ``given`` has not got."""
    behind = table.phy_offset + table.size_bytes
    number = room.numbers(table.phy_offset, behind)
    is_one = table.messages & table.of_code(FrameCode.OK)
    stands_at = np.where(number < 0, table.phy_offset, -1)  # what has the place
    low, high = int(table.phy_offset[0]), int(behind[-1])
    for other in given:
        if other.start < high and low < other.end:
            has = (table.phy_offset < other.end) & (behind > other.start)
            stands_at[has] = table.phy_offset[has] - other.by
    copies += _copies_in(store.log, table, np.flatnonzero(is_one & (stands_at >= 0)), stands_at, by)
    rows = np.flatnonzero(is_one & (stands_at < 0))
    if not len(rows):
        return
    apart = (behind[rows[:-1]] != table.phy_offset[rows[1:]]) | (number[rows[:-1]] != number[rows[1:]])
    for part in np.split(rows, np.flatnonzero(apart) + 1):
        asked = part[:: max(len(part) // _ASKED, 1)].tolist()
        leads = [led for row in asked if (led := _is_led_to(store, table, row)) is not None]
        first, last = int(part[0]), int(part[-1])
        yield _Stretch(
            int(number[first]),
            int(table.phy_offset[first]),
            int(table.phy_offset[last]),
            int(behind[last]),
            by,
            int(table.store_timestamp_ms[first]),
            int(table.store_timestamp_ms[last]),
            len(part),
            sum(leads),
            len(leads) - sum(leads),
        )


def _copies_in(log: SegmentSequence, table: FrameTable, rows: Ints, stands_at: Ints, by: int) -> Iterator[Span]:
    """Where those of the rows lie, a run at a time, that are the same as what stands in their place."""
    ends = table.phy_offset + table.size_bytes
    joins = (ends[rows[:-1]] == table.phy_offset[rows[1:]]) & (
        stands_at[rows[:-1]] + table.size_bytes[rows[:-1]] == stands_at[rows[1:]]
    )
    for run in np.split(rows, np.flatnonzero(~joins) + 1) if len(rows) else ():
        whole = _is_copy(log, table, run, stands_at)
        for part in (run,) if whole else run.reshape(-1, 1):
            if whole or _is_copy(log, table, part, stands_at):
                yield int(table.phy_offset[part[0]]) - by, int(ends[part[-1]]) - by


def _is_copy(log: SegmentSequence, table: FrameTable, run: Ints, stands_at: Ints) -> bool:
    at = int(table.phy_offset[run[0]]) - table.window_phy_offset
    size = int(table.phy_offset[run[-1]] + table.size_bytes[run[-1]]) - table.window_phy_offset - at
    return log.read(int(stands_at[run[0]]), size) == bytes(table.window[at : at + size])


def _is_led_to(store: Store, table: FrameTable, row: int) -> bool | None:
    """Whether the entry at a record's number leads to the place that it says; None where there is no entry."""
    if int(table.sys_flag[row]) & record.TRANSACTION_MASK not in (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT):
        return None
    key = QueueKey(table.topic(row).decode("utf-8", "replace"), int(table.queue_id[row]))
    entry = queue_entry_at(store, key, int(table.queue_offset[row]))
    if entry is None or entry[1] <= 0:
        return None
    return entry[:2] == (int(table.phy_offset[row]), int(table.size_bytes[row]))


def _shift(log: SegmentSequence, segment: Segment, stretch: _Stretch) -> Shift:
    """With the blank behind the records, if that came with them."""
    lies_at, end = stretch.start - stretch.by, stretch.end
    size = log.file_size_bytes or segment.size_bytes
    left = -end % size
    file = log.alone(Segment(segment.path, 0, segment.size_bytes))
    prefix = file.read(end - stretch.by - segment.phy_offset, record.PREFIX.size_bytes)
    if len(prefix) == record.PREFIX.size_bytes and log.following(segment) is not None:
        blank = record.PREFIX.read(prefix)
        end += record.PREFIX.size_bytes if (blank["magic"], blank["size_bytes"]) == (record.MAGIC_BLANK, left) else 0
    size_bytes = end - stretch.start
    source = lies_at, max(min(lies_at + size_bytes, nominal_end(log, segment)), lies_at)
    return Shift(stretch.start, size_bytes, stretch.records, source, segment.path, lies_at - segment.phy_offset)
