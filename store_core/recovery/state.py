"""Find the readable records of the log: one walk, and passes whose edits make more records readable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from store_core.codec.record import body_crc_ok
from store_core.layout.record import PREFIX
from store_core.read.records import read_message
from store_core.recovery.damage_scan import (
    LogSurvey,
    Neighbour,
    Ranges,
    Region,
    TableSink,
    WalkRules,
    neighbour_at,
    survey_log,
)
from store_core.recovery.header_repair import Repair, repairs_in
from store_core.recovery.keep_options import KeepOptions, LoanRange
from store_core.recovery.lmq_lists import relisted
from store_core.recovery.log_edits import apart_from, as_long_as_they_are, restored_log
from store_core.recovery.lost_from_queues import lost_by_queue_entries
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import Lost, LostTable, records_of
from store_core.recovery.misdirected_records import Displaced, Move, displaced, is_better, misdirected
from store_core.recovery.replica import Earlier, Siblings
from store_core.recovery.shifted_records import Shift, shifted
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, nominal_end
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.scan.walk_progress import WalkProgress, behind
from store_core.storage.overlay import Patch
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

_MAX_LMQ_REPAIRS: Final = 1 << 14  # records whose list of light queues is repaired in one recovery


class TombstoneRegions:
    """Collects the regions where an earlier recovery wrote tombstones and fillers; a replica may have the lost messages."""

    def __init__(self, log: SegmentSequence) -> None:
        self._log = log
        self._before: Neighbour | None = None
        self.regions: list[Region] = []

    def add(self, table: FrameTable) -> None:
        for row in sorted((*filler_rows(table), *tombstone_rows(table))):
            start = int(table.phy_offset[row])
            end = start + int(table.size_bytes[row])
            segment = self._log.find(start)
            last = self.regions[-1] if self.regions else None
            if segment is None:
                continue
            if last is not None and last.end_phy_offset == start and last.segment_phy_offset == segment.phy_offset:
                last.end_phy_offset = end
            else:
                before = neighbour_at(table, row - 1) if row and table.messages[row - 1] else self._before
                segment_end = nominal_end(self._log, segment)
                self.regions.append(Region(start, end, segment.phy_offset, segment_end, before=before))
        if len(table):
            self._before = neighbour_at(table, len(table) - 1) if table.messages[-1] else None

    def emptied(self, loans: Mapping[int, Patch]) -> dict[int, Patch]:
        """Return zeros for the tombstone regions that a replica can fill, so that the next walk reads its records there."""
        given = Ranges((at, at + patch.end) for at, patch in loans.items())
        return {
            region.phy_offset: Patch(0, region.size_bytes)
            for region in self.regions
            if given.overlap(region.phy_offset, region.end_phy_offset)
        }


class FirstWalk(Protocol):
    """A reader of the tables of the first walk, of the log as it is."""

    options: ScanOptions

    @property
    def bad_lists(self) -> Sequence[int]: ...

    def add(self, table: FrameTable, /) -> None: ...


@dataclass(slots=True)
class RecoveryState:
    """The log with the edits found so far.

    * ``known``: lost records that queue entries and good heads place in a damaged region, by the region's number in the survey
    * ``restored``: bytes that replace damaged ones, by their offset in the log; the survey has walked over them
    * ``placed``: bytes of whole files that had wrong names; where both are given, ``restored`` replaces ``placed``
    """

    survey: LogSurvey
    known: dict[int, list[Lost]]
    restored: dict[int, Patch] = field(default_factory=dict)
    placed: dict[int, Patch] = field(default_factory=dict)
    loans: list[LoanRange] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    own_end_phy_offset: int = 0  # end of this store's own last good record
    moved: list[Move] = field(default_factory=list)  # files that return to their own offsets
    shifted: list[Shift] = field(default_factory=list)  # ranges that return to their own offsets
    earlier: list[Earlier] = field(default_factory=list)  # siblings whose log starts before this store's
    is_first: bool = True  # the first walk found this, without edits


def read_state(
    store: Store,
    rules: WalkRules,
    siblings: Siblings,
    options: KeepOptions,
    sinks: tuple[TableSink, ...] = (),
    first: FirstWalk | None = None,
    jobs: int = 1,
    walks: WalkProgress | None = None,
    *,
    table: LostTable,
) -> RecoveryState:
    """Return the log with all edits that PASSES find.

    The log is walked again, by ``jobs`` threads, after each pass whose edits change what a walk finds. ``sinks`` get the
    tables of every walk, ``first`` those of the first one. ``table`` holds lost records that are too many for objects.
    """
    work = _Work(store, rules, siblings, options, sinks, first, jobs, walks or WalkProgress(None, 0), table)
    for find_edits in PASSES:
        find_edits(work)
    return work.finished()


@dataclass(slots=True)
class _Work:
    """The arguments and the state that the passes share.

    ``zeros`` cover bytes that only look like good records or blanks. ``placed`` are whole files that had wrong names.
    ``put_back`` are records that return to their own offsets.
    """

    store: Store
    rules: WalkRules
    siblings: Siblings
    options: KeepOptions
    sinks: tuple[TableSink, ...]
    first: FirstWalk | None
    jobs: int
    walks: WalkProgress
    table: LostTable
    state: RecoveryState = field(init=False)
    tombstones: TombstoneRegions = field(init=False)
    zeros: dict[int, Patch] = field(default_factory=dict)
    placed: dict[int, Patch] = field(default_factory=dict)
    put_back: dict[int, Patch] = field(default_factory=dict)
    stray_files: Displaced = field(default_factory=Displaced)
    shifts: list[Shift] = field(default_factory=list)
    stray_records: list[Repair] = field(default_factory=list)

    @contextmanager
    def view(self) -> Iterator[Store]:
        """Yield the store with its log as edited so far."""
        with self.store.with_log(self.log()) as view:
            yield view

    def log(self) -> SegmentSequence:
        return restored_log(self.store, _merged(self.zeros, self.state.restored), self.placed)

    def walk_again(self, restored: dict[int, Patch]) -> None:
        """Walk over the edited log. Edits in regions that a broker still could not walk over are dropped."""
        self.state = self.walked(_not_overlapped(self.zeros, restored), restored, self.placed)

    def walked(self, zeros: dict[int, Patch], restored: dict[int, Patch], placed: dict[int, Patch]) -> RecoveryState:
        with self.store.with_log(restored_log(self.store, {**zeros, **restored}, placed)) as view:
            options = ScanOptions(jobs=self.jobs)
            progress = self.walks.more()
            survey = survey_log(
                view, self.sinks, rules=self.rules, options=options, on_progress=progress, lost=self.table
            )
            known = self.lost_in(survey, survey.regions, view.log)
        closed = Ranges((r.phy_offset, r.end_phy_offset) for r in (*survey.regions, *survey.tail))
        return RecoveryState(survey, known, apart_from(restored, closed), is_first=False)

    def lost_in(self, survey: LogSurvey, regions: list[Region], log: SegmentSequence) -> dict[int, list[Lost]]:
        """Return lost records that queue entries and heads name, by region; each other head goes to its region."""

        def on_head(number: int, head: LostRecord) -> None:
            regions[number].lost.append(head)

        self.table.log = log
        crc = self.rules.property_crc
        return lost_by_queue_entries(
            self.store, regions, self.table, self.walks, heads=survey.heads, on_head=on_head, property_crc=crc
        )

    def finished(self) -> RecoveryState:
        state = self.state
        state.repairs = [
            r for r in (*self.stray_records, *state.repairs) if all(at in state.restored for at, _ in r.changes)
        ]
        state.shifted = [shift for shift in self.shifts if shift.phy_offset in state.restored]
        _keep_zeros(state, self.zeros)
        if self.placed:
            state.placed = self.stray_files.patches(self.store.log, state.survey.end_phy_offset)
            state.moved = [move for move in self.stray_files.moves if move.phy_offset in state.placed]
        return state


def _first_walk(work: _Work) -> None:
    """Walk the log as it is, and cover false blanks with zeros."""
    store, first = work.store, work.first
    options = replace(first.options if first is not None else ScanOptions(), jobs=work.jobs)
    sinks = (*work.sinks, first.add) if first is not None else work.sinks
    work.tombstones = TombstoneRegions(store.log)
    if work.siblings.roots:
        sinks = (*sinks, work.tombstones.add)
        options = replace(options, bytes_for=None)
    with store.with_log(as_long_as_they_are(store.log)) as view:
        progress = work.walks.next()
        survey = survey_log(view, sinks, rules=work.rules, options=options, on_progress=progress, lost=work.table)
        candidates = sorted([*survey.regions, *survey.blanks], key=lambda r: r.phy_offset)
        lost = work.lost_in(survey, candidates, view.log)
    known = {id(region): lost[number] for number, region in enumerate(candidates) if number in lost}
    work.state = RecoveryState(survey, {n: known[id(r)] for n, r in enumerate(survey.regions) if id(r) in known})
    work.zeros = _wrong_blanks(store, survey, known)
    if work.zeros:
        work.walk_again({})


def _stray_files(work: _Work) -> None:
    """Put files with wrong names at their own offsets, if a walk then finds more records."""
    stray = displaced(work.store)
    if not (stray.moves or stray.emptied):
        return
    whole = stray.patches(work.store.log)
    zeros = _not_overlapped(work.zeros, whole)
    better = work.walked(zeros, {}, whole)
    if is_better(work.state.survey, better.survey):
        work.state, work.placed, work.zeros, work.stray_files = better, whole, zeros, stray


def _shifted_records(work: _Work) -> None:
    """Move ranges back that a bad copy shifted by some bytes."""
    claimed = Ranges((at, at + patch.end) for at, patch in work.zeros.items())
    found = shifted(work.store, work.state.survey, claimed, _moved_files(work.store, work.stray_files))
    work.shifts, work.put_back = found.shifts, found.put_back
    if work.put_back:
        work.zeros |= found.zeros
        work.walk_again(work.put_back)


def _misdirected_records(work: _Work) -> None:
    """Move records back that were written over others."""
    with work.view() as view:
        found = misdirected(view, work.state.survey)
    work.stray_records = found.repairs
    if found.zeros:
        work.zeros |= found.zeros
        work.put_back = {**_not_overlapped(work.put_back, found.zeros), **found.put_back}
        work.walk_again(work.put_back)


def _from_replicas(work: _Work) -> None:
    """Take damaged and missing ranges from other copies of the log."""
    own_end, loans, earlier = work.state.survey.end_phy_offset, work.options.loans, list[Earlier]()
    if work.siblings.roots and loans is None:
        with work.view() as view:
            found = work.siblings.find(view, work.state.survey, work.options.sibling_from, work.tombstones.regions)
        loans, earlier = tuple(found.loans), found.earlier
    if work.siblings.roots and loans:
        patches = work.siblings.patches(loans)
        work.zeros |= work.tombstones.emptied(patches)
        work.walk_again({**patches, **_not_overlapped(work.put_back, patches)})
        kept = Ranges((at, at + patch.end) for at, patch in work.state.restored.items())
        work.state.loans = [loan for loan in loans if kept.overlap(loan.phy_offset, loan.phy_offset + loan.size_bytes)]
    work.state.own_end_phy_offset, work.state.earlier = own_end, earlier


def _damaged_heads(work: _Work) -> None:
    """Repair record heads and lists of light queues whose right value all other data proves."""
    before = work.state
    repairs = _repairs(work)
    if work.first is not None and work.first.bad_lists:
        with work.view() as view:
            repairs += relisted(view, work.first.bad_lists[:_MAX_LMQ_REPAIRS])
    if repairs:
        work.walk_again({**before.restored, **_patches_of(repairs)})
        state = work.state
        state.loans, state.earlier, state.own_end_phy_offset = before.loans, before.earlier, before.own_end_phy_offset
    work.state.repairs = repairs


PASSES: Final = (_first_walk, _stray_files, _shifted_records, _misdirected_records, _from_replicas, _damaged_heads)


def _moved_files(store: Store, moved: Displaced) -> list[Path]:
    """Return files whose bytes move to another offset, or are replaced by those of other files."""
    homes = {move.phy_offset for move in moved.moves}
    files = [segment.path for segment in store.log.segments if segment.phy_offset in homes]
    return [*files, *(move.path for move in moved.moves), *(segment.path for segment in moved.emptied)]


def _repairs(work: _Work) -> list[Repair]:
    """Return the repairs of damaged heads, in the regions and after the log's end."""
    survey, log = work.state.survey, work.log()
    damaged = sorted([*survey.regions, *survey.tail], key=lambda region: region.phy_offset)
    regions = [region for region in damaged if region.used_bytes and log.find(region.phy_offset) is not None]
    if not regions:
        return []
    known = lost_by_queue_entries(work.store, regions, work.table, work.walks, heads=survey.heads)
    progress = work.walks.piece(sum(region.size_bytes for region in regions))
    found: list[Repair] = []
    done = 0
    with work.store.with_log(log) as view:
        for number, region in enumerate(regions):
            is_tail = region.phy_offset >= survey.end_phy_offset
            on_progress = behind(progress, done)
            found += repairs_in(view.log, region, known.get(number, []), is_tail=is_tail, on_progress=on_progress)
            done += region.size_bytes
    unseen = Ranges((at, at + patch.end) for at, patch in _not_overlapped(work.zeros, work.state.restored).items())
    return [r.in_full(log) if unseen.overlap(r.phy_offset, r.phy_offset + r.size_bytes) else r for r in found]


def _patches_of(repairs: Iterable[Repair]) -> dict[int, Patch]:
    return {at: Patch(0, len(data), ((0, data),)) for repair in repairs for at, data in repair.changes}


def _wrong_blanks(store: Store, survey: LogSurvey, known: dict[int, list[Lost]]) -> dict[int, Patch]:
    """Return zeros for blanks that contain whole records with queue entries: no broker wrote such a blank."""
    return {
        blank.phy_offset: Patch(0, PREFIX.size_bytes)
        for blank in survey.blanks
        if any(_is_whole(store, lost) for lost in records_of(known.get(id(blank), ())))
    }


def _not_overlapped(patches: dict[int, Patch], restored: dict[int, Patch]) -> dict[int, Patch]:
    """Return the parts of ``patches`` that ``restored`` does not overlap."""
    return apart_from(patches, Ranges((at, at + patch.end) for at, patch in restored.items()))


def _merged(wrong: dict[int, Patch], restored: dict[int, Patch]) -> dict[int, Patch]:
    return {**_not_overlapped(wrong, restored), **restored}


def _keep_zeros(state: RecoveryState, wrong: dict[int, Patch]) -> None:
    """Restore zeros that a walk saw outside every closed region, such as a record's start that its predecessor overwrote."""
    closed = Ranges((r.phy_offset, r.end_phy_offset) for r in (*state.survey.regions, *state.survey.tail))
    for at, patch in _not_overlapped(wrong, state.restored).items():
        for start, end in closed.outside(at, at + patch.end):
            state.restored[start] = Patch(0, end - start, ((0, bytes(end - start)),))


def _is_whole(store: Store, lost: LostRecord) -> bool:
    """Return True if the record that a queue entry names is whole."""
    assert lost.phy_offset is not None  # every queue entry has it
    message = read_message(store.log, lost.phy_offset)
    return (
        message is not None
        and (message.topic, message.queue_id, message.queue_offset) == (lost.topic, lost.queue_id, lost.queue_offset)
        and message.own_phy_offset == lost.phy_offset
        and body_crc_ok(message)
    )
