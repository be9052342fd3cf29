"""The log as far as it can be read, before any hole is closed: what one walk shows, and what could be had again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from store_core.codec.record import body_crc_ok
from store_core.layout.record import PREFIX
from store_core.read.records import read_message
from store_core.recovery.damage_scan import (
    LogSurvey,
    Neighbour,
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
from store_core.recovery.misdirected_records import misdirected
from store_core.recovery.offset_ranges import Ranges
from store_core.recovery.replica import Earlier, Siblings
from store_core.recovery.shifted_records import Shift, shifted
from store_core.recovery.stray_files import Displaced, Move, displaced, is_better
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, nominal_end
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.scan.walk_progress import WalkProgress, behind
from store_core.storage.overlay import Patch
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

_MOST_LISTS: Final = 1 << 14  # of light queues that are made good at a time


class TombstoneRegions:
    """Where an earlier recovery has put tombstones and fillers: a copy may have what was lost there."""

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
        """Zeros over each run of them of which a copy gives anything: what is left of it has to be told, and numbered, anew."""
        given = Ranges((at, at + patch.end) for at, patch in loans.items())
        return {
            region.phy_offset: Patch(0, region.size_bytes)
            for region in self.regions
            if given.overlap(region.phy_offset, region.end_phy_offset)
        }


class FirstWalk(Protocol):
    """Who wants to see what the log holds as it is, and what of it."""

    options: ScanOptions

    @property
    def bad_lists(self) -> Sequence[int]: ...

    def add(self, table: FrameTable, /) -> None: ...


@dataclass(slots=True)
class RecoveryState:
    """``known`` are the records that queue entries place in a region, and many sound heads, by the region's number in the survey.

    ``restored`` are bytes that take the place of damaged ones, by their offset in the log; the survey has walked over them.
    ``placed`` are those of whole files that stood elsewhere; what is restored goes over them.
    """

    survey: LogSurvey
    known: dict[int, list[Lost]]
    restored: dict[int, Patch] = field(default_factory=dict)
    placed: dict[int, Patch] = field(default_factory=dict)
    loans: list[LoanRange] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    own_end_phy_offset: int = 0  # where the last good record ends that this store has itself
    moved: list[Move] = field(default_factory=list)  # files that get their own places back
    shifted: list[Shift] = field(default_factory=list)  # stretches that do
    earlier: list[Earlier] = field(default_factory=list)  # siblings whose log begins before this store's
    is_first: bool = True  # nothing had to be taken back: this is what the first walk showed


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
    """Walk the log, and again where something changes what it shows: a blank that is none, records had back.

    ``sinks`` see the tables of every walk, ``first`` those of the first one. Walks are made by ``jobs`` threads. Many lost
    records lie in ``table``.
    """
    walks = walks or WalkProgress(None, 0)
    scanned = replace(first.options if first is not None else ScanOptions(), jobs=jobs)
    all_sinks = (*sinks, first.add) if first is not None else sinks
    stopgaps = TombstoneRegions(store.log)
    if siblings.roots:
        all_sinks = (*all_sinks, stopgaps.add)
        scanned = replace(scanned, bytes_for=None)
    with store.with_log(as_long_as_they_are(store.log)) as view:
        survey = survey_log(view, all_sinks, rules=rules, options=scanned, on_progress=walks.next(), lost=table)
        both = sorted([*survey.regions, *survey.blanks], key=lambda r: r.phy_offset)
        placed = _told(store, rules, survey, both, table, walks, view.log)
    again = partial(_again, store, rules, sinks, jobs, walks, table)
    known = {id(region): placed[number] for number, region in enumerate(both) if number in placed}
    wrong = _wrong_blanks(store, survey, known)
    state = RecoveryState(survey, {n: known[id(r)] for n, r in enumerate(survey.regions) if id(r) in known})
    if wrong:
        state = again(wrong, {})
    moved = displaced(store)
    in_place: dict[int, Patch] = {}
    if moved.moves or moved.emptied:
        whole = moved.patches(store.log)
        better = again(_apart(wrong, whole), {}, whole)
        if is_better(state.survey, better.survey):
            state, in_place, wrong = better, whole, _apart(wrong, whole)
    claimed = Ranges((at, at + patch.end) for at, patch in wrong.items())
    beside = shifted(store, state.survey, claimed, _out_of_place(store, moved if in_place else Displaced()))
    put_back = beside.put_back
    if put_back:
        wrong |= beside.zeros
        state = again(_apart(wrong, put_back), put_back, in_place)
    with store.with_log(restored_log(store, _both(wrong, state.restored), in_place)) as view:
        strays = misdirected(view, state.survey)
    if strays.zeros:
        wrong |= strays.zeros
        put_back = {**_apart(put_back, strays.zeros), **strays.put_back}
        state = again(_apart(wrong, put_back), put_back, in_place)
    own_end, earlier = state.survey.end_phy_offset, list[Earlier]()
    if siblings.roots:
        loans = options.loans
        if loans is None:
            with store.with_log(restored_log(store, _both(wrong, state.restored), in_place)) as view:
                asked = siblings.find(view, state.survey, options.sibling_from, stopgaps.regions)
            loans, earlier = tuple(asked.loans), asked.earlier
        if loans:
            found = siblings.patches(loans)
            wrong |= stopgaps.emptied(found)
            found |= _apart(put_back, found)
            state = again(_apart(wrong, found), found, in_place)
            kept = Ranges((at, at + patch.end) for at, patch in state.restored.items())
            state.loans = [loan for loan in loans if kept.overlap(loan.phy_offset, loan.phy_offset + loan.size_bytes)]
    repairs = _repairs(store, state, wrong, in_place, table, walks)
    if first is not None and first.bad_lists:
        with store.with_log(restored_log(store, _both(wrong, state.restored), in_place)) as view:
            repairs += relisted(view, first.bad_lists[:_MOST_LISTS])
    if repairs:
        loaned, loans_before = state.restored, state.loans
        patches = {at: Patch(0, len(data), ((0, data),)) for repair in repairs for at, data in repair.changes}
        state = again(_apart(wrong, {**loaned, **patches}), {**loaned, **patches}, in_place)
        state.loans = loans_before
    state.repairs = [r for r in (*strays.repairs, *repairs) if all(at in state.restored for at, _ in r.changes)]
    state.shifted = [shift for shift in beside.shifts if shift.phy_offset in state.restored]
    _keep_zeros(state, wrong)
    state.own_end_phy_offset = own_end
    state.earlier = earlier
    if in_place:
        state.placed = moved.patches(store.log, state.survey.end_phy_offset)
        state.moved = [move for move in moved.moves if move.phy_offset in state.placed]
    return state


def _out_of_place(store: Store, moved: Displaced) -> list[Path]:
    """Files whose bytes go elsewhere, or in whose place others come."""
    homes = {move.phy_offset for move in moved.moves}
    files = [segment.path for segment in store.log.segments if segment.phy_offset in homes]
    return [*files, *(move.path for move in moved.moves), *(segment.path for segment in moved.emptied)]


def _again(
    store: Store,
    rules: WalkRules,
    sinks: tuple[TableSink, ...],
    jobs: int,
    walks: WalkProgress,
    table: LostTable,
    wrong: dict[int, Patch],
    restored: dict[int, Patch],
    placed: dict[int, Patch] | None = None,
) -> RecoveryState:
    """Walk over what could be had again. What still lies where a broker cannot walk is not kept."""
    with store.with_log(restored_log(store, {**wrong, **restored}, placed)) as view:
        options = ScanOptions(jobs=jobs)
        survey = survey_log(view, sinks, rules=rules, options=options, on_progress=walks.more(), lost=table)
        known = _told(store, rules, survey, survey.regions, table, walks, view.log)
    closed = Ranges((r.phy_offset, r.end_phy_offset) for r in (*survey.regions, *survey.tail))
    return RecoveryState(survey, known, apart_from(restored, closed), is_first=False)


def _told(
    store: Store,
    rules: WalkRules,
    survey: LogSurvey,
    regions: list[Region],
    table: LostTable,
    walks: WalkProgress,
    log: SegmentSequence,
) -> dict[int, list[Lost]]:
    """Lost records as queue entries tell them, and as many heads do; each other head goes to its region."""

    def on_head(number: int, head: LostRecord) -> None:
        regions[number].lost.append(head)

    table.log = log
    return lost_by_queue_entries(
        store, regions, table, walks, heads=survey.heads, on_head=on_head, property_crc=rules.property_crc
    )


def _repairs(
    store: Store,
    state: RecoveryState,
    wrong: dict[int, Patch],
    placed: dict[int, Patch],
    table: LostTable,
    walks: WalkProgress,
) -> list[Repair]:
    """Records whose head can be made good, in the regions and behind the log's end."""
    survey, zeros = state.survey, _apart(wrong, state.restored)
    log = restored_log(store, {**zeros, **state.restored}, placed)
    both = sorted([*survey.regions, *survey.tail], key=lambda region: region.phy_offset)
    regions = [region for region in both if region.used_bytes and log.find(region.phy_offset) is not None]
    if not regions:
        return []
    known = lost_by_queue_entries(store, regions, table, walks, heads=survey.heads)
    told = walks.piece(sum(region.size_bytes for region in regions))
    found: list[Repair] = []
    done = 0
    with store.with_log(log) as view:
        for number, region in enumerate(regions):
            is_tail = region.phy_offset >= survey.end_phy_offset
            tell = behind(told, done)
            found += repairs_in(view.log, region, known.get(number, []), is_tail=is_tail, on_progress=tell)
            done += region.size_bytes
    unseen = Ranges((at, at + patch.end) for at, patch in zeros.items())
    return [r.in_full(log) if unseen.overlap(r.phy_offset, r.phy_offset + r.size_bytes) else r for r in found]


def _wrong_blanks(store: Store, survey: LogSurvey, known: dict[int, list[Lost]]) -> dict[int, Patch]:
    """Zeros over blanks in which whole records lie that queue entries point to: no broker wrote them, they are damage."""
    return {
        blank.phy_offset: Patch(0, PREFIX.size_bytes)
        for blank in survey.blanks
        if any(_stands(store, lost) for lost in records_of(known.get(id(blank), ())))
    }


def _apart(patches: dict[int, Patch], restored: dict[int, Patch]) -> dict[int, Patch]:
    """The former where the latter do not reach into them."""
    return apart_from(patches, Ranges((at, at + patch.end) for at, patch in restored.items()))


def _both(wrong: dict[int, Patch], restored: dict[int, Patch]) -> dict[int, Patch]:
    return {**_apart(wrong, restored), **restored}


def _keep_zeros(state: RecoveryState, wrong: dict[int, Patch]) -> None:
    """Restore what a walk saw as zeros, and nothing will stand for: the begin of a record that the one before reached into."""
    closed = Ranges((r.phy_offset, r.end_phy_offset) for r in (*state.survey.regions, *state.survey.tail))
    for at, patch in _apart(wrong, state.restored).items():
        for start, end in closed.outside(at, at + patch.end):
            state.restored[start] = Patch(0, end - start, ((0, bytes(end - start)),))


def _stands(store: Store, lost: LostRecord) -> bool:
    """Whether the record that a queue entry tells of is there, whole."""
    assert lost.phy_offset is not None  # entries tell it
    message = read_message(store.log, lost.phy_offset)
    return (
        message is not None
        and (message.topic, message.queue_id, message.queue_offset) == (lost.topic, lost.queue_id, lost.queue_offset)
        and message.own_phy_offset == lost.phy_offset
        and body_crc_ok(message)
    )
