"""Find ranges of the log that a bad copy moved by some bytes and put them back.

A copy that leaves out a sector or a page (`dd conv=noerror` without `sync`), or has one twice, moves all bytes after it in the
file; whole records may be missing or there twice, too (tests/recovery/test_shifted.py). No record of such a range is at its own
offset, so neither a broker nor the damage scan walks into it, unless the copy lost or repeated only whole records. The records
agree on the distance. A range goes back if nothing readable that stays is at its own place, and

* a queue entry points there; or
* no entry points elsewhere, several records follow each other, and their store times fit between those of the records before
  and after their place.
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
from store_core.recovery.damage_scan import LogSurvey, Ranges
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.scan.frames import FrameTable, Ints
from store_core.scan.log import nominal_end, scan_log
from store_core.storage.overlay import Borrowed, Patch
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import QueueKey, Store

_MOST_SHIFTS: Final = 1 << 14  # distances in one file
_MOST_CANDIDATES: Final = 1 << 14  # in one file
_IDLE_BYTES: Final = 8 << 20  # without a record that was moved by the same distance
_FEWEST_RECORDS: Final = 2  # records that prove each other
_MOST_ENTRIES: Final = 16  # about so many queue entries are read for one range of a table
_WINDOW_SIZE_BYTES: Final = 4 << 20
Span = tuple[int, int]  # [start, end)


class Shift(NamedTuple):
    """Consecutive ``records`` at ``position`` of the file ``path`` that belong at ``phy_offset``.

    ``source`` is the range of the log that they occupy, within the segment's nominal length.
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
    """Edits by log offset: ``zeros`` over places that records leave, ``put_back`` with records read where they are now."""

    shifts: list[Shift] = field(default_factory=list)
    zeros: dict[int, Patch] = field(default_factory=dict)
    put_back: dict[int, Patch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Records that may move ``by`` bytes to [start, end) in span number ``span`` of the room.

    There the last record starts at ``last``. ``agree`` and ``differ`` count the records whose queue entry was read and points to
    the new place, or elsewhere.
    """

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
    """Free spans for records: holes, and the places of records that are not at their own offset. No span crosses a segment's end.

    ``looked_at`` is where a span's strays may start: in the record before it, which may have lost its end to the first of them.
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

    def fits_in_time(self, candidate: _Candidate) -> bool:
        """Return True if the records' store times fit between those of the records around their span."""
        since, until = self._times[candidate.span]
        is_late = since is None or since <= candidate.first_timestamp_ms
        return is_late and (until is None or candidate.last_timestamp_ms <= until)

    def numbers(self, starts: Ints, ends: Ints) -> Ints:
        """Return the numbers of the spans that contain the ranges; -1 for a range in no span."""
        number = np.searchsorted(self._starts, starts, "right") - 1
        found: Ints = np.where((number >= 0) & (ends <= self._ends[number]), number, -1)
        return found


def shifted(store: Store, survey: LogSurvey, taken: Ranges, untouched: Iterable[Path] = ()) -> Shifted:
    """Return the moved ranges of the log and the edits that put them back.

    ``taken``: ranges of the log that other edits claim; files ``untouched`` are neither read nor written. Single records of a
    file that lie over others where a broker walks are left to ``misdirected``. Raises FailedError where a segment cannot be read.
    """
    room = _Room(store.log, survey)
    excluded = set(untouched)
    found: list[Shift] = []
    copies: list[Span] = []
    for segment, spans in _files(store.log, room).items():
        if segment.path in excluded:
            continue
        shifts: list[Shift] = []
        for candidate in _candidates(store, segment, spans, room, copies):
            shift = _shift(store.log, segment, candidate)
            holder = store.log.find(shift.phy_offset)
            follows = bool(shifts) and shift.position == shifts[-1].position + shifts[-1].size_bytes
            are_several = follows or candidate.records >= _FEWEST_RECORDS
            is_proven_by_times = not candidate.differ and are_several and room.fits_in_time(candidate)
            is_free = not (taken.overlap(*shift.home) or taken.overlap(*shift.source))
            is_free &= holder is None or holder.path not in excluded
            if is_free and (candidate.agree or is_proven_by_times):
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
    """Return the shifts whose records have room once the others have moved; each place is given once."""
    while True:
        free = Ranges([*room.holes, *copies, *(shift.source for shift in shifts)])
        kept: list[Shift] = []
        end = -1
        for shift in sorted(shifts):
            if shift.phy_offset >= end and not any(free.outside(*shift.home)):
                kept.append(shift)
                end = shift.home[1]
        if len(kept) == len(shifts):
            return kept
        shifts = kept


def _zeros(shifts: list[Shift], room: _Room, copies: list[Span]) -> dict[int, Patch]:
    """Return zeros over the places that the records leave, and over copies that are in the way."""
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
    """Yield spans, which are in order, with adjacent ones joined."""
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
    """Return the files that contain spans, and the ranges of each to search, as positions in the file."""
    found: dict[Segment, list[Span]] = {}
    for begin, (start, end) in zip(room.looked_at, room.spans, strict=True):
        segment = log.find(start)
        if segment is not None:
            # Bytes that a repeated page moved out of the file's end lie after its nominal length.
            stop = segment.end_phy_offset if end >= nominal_end(log, segment) else min(end, segment.end_phy_offset)
            begin = max(begin, segment.phy_offset)
            found.setdefault(segment, []).append((begin - segment.phy_offset, stop - segment.phy_offset))
    return found


def _candidates(
    store: Store, segment: Segment, spans: list[Span], room: _Room, copies: list[Span]
) -> Iterator[_Candidate]:
    """Yield ranges of a file for which there may be room. ``copies`` receives ranges that are also at their own place."""
    file = store.log.alone(Segment(segment.path, 0, segment.size_bytes))
    seen: set[int] = set()
    given: list[_Candidate] = []
    at = spans[0][0]
    while len(seen) < _MOST_SHIFTS and (stray := _next_stray(file, segment.phy_offset, spans, at, seen)) is not None:
        at, by = stray
        seen.add(by)
        doubles: list[Span] = []
        moved = Segment(segment.path, segment.phy_offset + by, segment.size_bytes)
        with store.with_log(store.log.alone(moved)) as view:
            begin, end = moved.phy_offset + at, moved.phy_offset + spans[-1][1]
            tables = _with_records(scan_log(view, from_phy_offset=begin, to_phy_offset=end))
            look = partial(_in_table, store, by=by, room=room, given=tuple(given), copies=doubles)
            for candidate in _joined(chain.from_iterable(map(look, tables))):
                if at == candidate.start - moved.phy_offset:  # the last record may have lost its end to the next range
                    at = candidate.last - moved.phy_offset + 1
                given.append(candidate)
                yield candidate
                if len(given) == _MOST_CANDIDATES:
                    return
        log_end = nominal_end(store.log, segment)
        copies += [(start, min(end, log_end)) for start, end in doubles if start < log_end]


def _next_stray(
    file: SegmentSequence, phy_offset: int, spans: Iterable[Span], at: int, seen: set[int]
) -> tuple[int, int] | None:
    """Return position and distance of the next record that belongs elsewhere, by a distance not yet in ``seen``."""
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
                if place < reached:  # inside the body of another record
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
    """Yield tables with records at their own offset, until ``_IDLE_BYTES`` have none."""
    reached = -1
    for table in tables:
        if (table.messages & table.of_code(FrameCode.OK)).any():
            reached = table.end_phy_offset
            yield table
        elif reached >= 0 and table.end_phy_offset - reached > _IDLE_BYTES:
            return


def _joined(candidates: Iterable[_Candidate]) -> Iterator[_Candidate]:
    """Yield candidates with adjacent ones of a span joined."""
    held: _Candidate | None = None
    for candidate in candidates:
        if held is not None and (held.span, held.end) == (candidate.span, candidate.start):
            held = replace(
                held,
                last=candidate.last,
                end=candidate.end,
                last_timestamp_ms=candidate.last_timestamp_ms,
                records=held.records + candidate.records,
                agree=held.agree + candidate.agree,
                differ=held.differ + candidate.differ,
            )
            continue
        if held is not None:
            yield held
        held = candidate
    if held is not None:
        yield held


def _in_table(
    store: Store, table: FrameTable, *, by: int, room: _Room, given: Sequence[_Candidate], copies: list[Span]
) -> Iterator[_Candidate]:
    """Yield ranges of records of a table for which there may be room and which ``given`` does not contain."""
    ends = table.phy_offset + table.size_bytes
    number = room.numbers(table.phy_offset, ends)
    is_record = table.messages & table.of_code(FrameCode.OK)
    held_at = np.where(number < 0, table.phy_offset, -1)  # where the bytes that hold the place are
    low, high = int(table.phy_offset[0]), int(ends[-1])
    for other in given:
        if other.start < high and low < other.end:
            has = (table.phy_offset < other.end) & (ends > other.start)
            held_at[has] = table.phy_offset[has] - other.by
    copies += _copies_in(store.log, table, np.flatnonzero(is_record & (held_at >= 0)), held_at, by)
    rows = np.flatnonzero(is_record & (held_at < 0))
    if not len(rows):
        return
    breaks = (ends[rows[:-1]] != table.phy_offset[rows[1:]]) | (number[rows[:-1]] != number[rows[1:]])
    for part in np.split(rows, np.flatnonzero(breaks) + 1):
        checked = part[:: max(len(part) // _MOST_ENTRIES, 1)].tolist()
        agreements = [agrees for row in checked if (agrees := _entry_agrees(store, table, row)) is not None]
        first, last = int(part[0]), int(part[-1])
        yield _Candidate(
            int(number[first]),
            int(table.phy_offset[first]),
            int(table.phy_offset[last]),
            int(ends[last]),
            by,
            int(table.store_timestamp_ms[first]),
            int(table.store_timestamp_ms[last]),
            len(part),
            sum(agreements),
            len(agreements) - sum(agreements),
        )


def _copies_in(log: SegmentSequence, table: FrameTable, rows: Ints, held_at: Ints, by: int) -> Iterator[Span]:
    """Yield the ranges of rows, a run at a time, that equal the bytes at their own place."""
    ends = table.phy_offset + table.size_bytes
    joins = (ends[rows[:-1]] == table.phy_offset[rows[1:]]) & (
        held_at[rows[:-1]] + table.size_bytes[rows[:-1]] == held_at[rows[1:]]
    )
    for run in np.split(rows, np.flatnonzero(~joins) + 1) if len(rows) else ():
        whole = _is_copy(log, table, run, held_at)
        for part in (run,) if whole else run.reshape(-1, 1):
            if whole or _is_copy(log, table, part, held_at):
                yield int(table.phy_offset[part[0]]) - by, int(ends[part[-1]]) - by


def _is_copy(log: SegmentSequence, table: FrameTable, run: Ints, held_at: Ints) -> bool:
    at = int(table.phy_offset[run[0]]) - table.window_phy_offset
    size = int(table.phy_offset[run[-1]] + table.size_bytes[run[-1]]) - table.window_phy_offset - at
    return log.read(int(held_at[run[0]]), size) == bytes(table.window[at : at + size])


def _entry_agrees(store: Store, table: FrameTable, row: int) -> bool | None:
    """Return True if the entry at a record's number points to its own offset; None without an entry."""
    if int(table.sys_flag[row]) & record.TRANSACTION_MASK not in (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT):
        return None
    key = QueueKey(table.topic(row).decode("utf-8", "replace"), int(table.queue_id[row]))
    entry = queue_entry_at(store, key, int(table.queue_offset[row]))
    if entry is None or entry[1] <= 0:
        return None
    return entry[:2] == (int(table.phy_offset[row]), int(table.size_bytes[row]))


def _shift(log: SegmentSequence, segment: Segment, candidate: _Candidate) -> Shift:
    """Return a candidate as a shift, with the blank after its records if that moved with them."""
    lies_at, end = candidate.start - candidate.by, candidate.end
    size = log.file_size_bytes or segment.size_bytes
    blank_size_bytes = -end % size
    file = log.alone(Segment(segment.path, 0, segment.size_bytes))
    prefix = file.read(end - candidate.by - segment.phy_offset, record.PREFIX.size_bytes)
    if len(prefix) == record.PREFIX.size_bytes and log.following(segment) is not None:
        blank = record.PREFIX.read(prefix)
        end += (
            record.PREFIX.size_bytes
            if (blank["magic"], blank["size_bytes"]) == (record.MAGIC_BLANK, blank_size_bytes)
            else 0
        )
    size_bytes = end - candidate.start
    source = lies_at, max(min(lies_at + size_bytes, nominal_end(log, segment)), lies_at)
    return Shift(candidate.start, size_bytes, candidate.records, source, segment.path, lies_at - segment.phy_offset)
