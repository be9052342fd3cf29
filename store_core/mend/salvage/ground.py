"""The log as far as it can be read, before any hole is closed: what one walk shows, and what could be had again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from store_core.codec.record import body_crc_ok
from store_core.layout.record import PREFIX
from store_core.mend.salvage.displaced import Move, is_better, moves, patches_of
from store_core.mend.salvage.evidence import lost_by_queue_entries
from store_core.mend.salvage.mended import restored_log
from store_core.mend.salvage.options import KeepOptions, LoanRange
from store_core.mend.salvage.repair import Repair, repairs_in
from store_core.mend.salvage.sibling import Earlier, Siblings
from store_core.mend.salvage.survey import LogSurvey, LostRecord, TableSink, WalkRules, survey_log
from store_core.read.records import read_message
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions
from store_core.scan.walks import Walks
from store_core.storage.overlay import Patch
from store_core.storage.store import Store


class FirstWalk(Protocol):
    """Who wants to see what the log holds as it is, and what of it."""

    options: ScanOptions

    def add(self, table: FrameTable, /) -> None: ...


@dataclass(slots=True)
class Ground:
    """``known`` are the records that queue entries place in a region, by the region's number in the survey.

    ``restored`` are bytes that take the place of damaged ones, by their offset in the log; the survey has walked over them.
    """

    survey: LogSurvey
    known: dict[int, list[LostRecord]]
    restored: dict[int, Patch] = field(default_factory=dict)
    loans: list[LoanRange] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    own_end_phy_offset: int = 0  # where the last good record ends that this store has itself
    moved: list[Move] = field(default_factory=list)  # segments that get their own places back
    earlier: list[Earlier] = field(default_factory=list)  # siblings whose log begins before this store's
    is_first: bool = True  # nothing had to be taken back: this is what the first walk showed


def read_ground(
    store: Store,
    rules: WalkRules,
    siblings: Siblings,
    options: KeepOptions,
    sinks: tuple[TableSink, ...] = (),
    first: FirstWalk | None = None,
    jobs: int = 1,
    walks: Walks | None = None,
) -> Ground:
    """Walk the log, and again where something changes what it shows: a blank that is none, records had back.

    ``sinks`` see the tables of every walk, ``first`` those of the first one. Walks are made by ``jobs`` threads.
    """
    walks = walks or Walks(None, 0)
    scanned = replace(first.options if first is not None else ScanOptions(), jobs=jobs)
    all_sinks = (*sinks, first.add) if first is not None else sinks
    survey = survey_log(store, all_sinks, rules=rules, options=scanned, on_progress=walks.next())
    again = partial(_again, store, rules, sinks, jobs, walks)
    both = sorted([*survey.regions, *survey.blanks], key=lambda r: r.phy_offset)
    placed = lost_by_queue_entries(store, both)
    known = {id(region): placed[number] for number, region in enumerate(both) if number in placed}
    wrong = _wrong_blanks(store, survey, known)
    ground = Ground(survey, {n: known[id(r)] for n, r in enumerate(survey.regions) if id(r) in known})
    if wrong:
        ground = again(wrong, {})
    moved = moves(store)
    back: dict[int, Patch] = {}
    if moved:
        in_place: dict[int, Patch] = {**patches_of(store, moved)}
        better = again(_apart(wrong, in_place), in_place)
        if is_better(moved, store.log.file_size_bytes, ground.survey, better.survey):
            ground, back = better, {**patches_of(store, moved, better.survey.end_phy_offset)}
            ground.restored = back
    own_end, earlier = ground.survey.end_phy_offset, list[Earlier]()
    if siblings.roots:
        loans = options.loans
        if loans is None:
            with store.with_log(restored_log(store, {**_apart(wrong, back), **back})) as view:
                asked = siblings.find(view, ground.survey, options.sibling_from)
            loans, earlier = tuple(asked.loans), asked.earlier
        if loans:
            found = {**_apart(siblings.patches(loans), back), **back}
            ground = again(_apart(wrong, found), found)
            ground.loans = [loan for loan in loans if loan.phy_offset in ground.restored]
    if repairs := _repairs(store, {**_apart(wrong, ground.restored), **ground.restored}, ground.survey):
        loaned, kept = ground.restored, ground.loans
        patches = {at: Patch(0, len(data), ((0, data),)) for repair in repairs for at, data in repair.changes}
        ground = again(_apart(wrong, {**loaned, **patches}), {**loaned, **patches})
        ground.loans = kept
        ground.repairs = [r for r in repairs if all(at in ground.restored for at, _ in r.changes)]
    ground.own_end_phy_offset = own_end
    ground.earlier = earlier
    ground.moved = [move for move in moved if move.phy_offset in back]
    return ground


def _again(
    store: Store,
    rules: WalkRules,
    sinks: tuple[TableSink, ...],
    jobs: int,
    walks: Walks,
    wrong: dict[int, Patch],
    restored: dict[int, Patch],
) -> Ground:
    """Walk over what could be had again. What still lies where a broker cannot walk is not kept."""
    with store.with_log(restored_log(store, {**wrong, **restored})) as view:
        survey = survey_log(view, sinks, rules=rules, options=ScanOptions(jobs=jobs), on_progress=walks.more())
    closed = [(r.phy_offset, r.end_phy_offset) for r in (*survey.regions, *survey.tail)]
    kept = {at: patch for at, patch in restored.items() if not any(low <= at < high for low, high in closed)}
    return Ground(survey, lost_by_queue_entries(store, survey.regions), kept, is_first=False)


def _repairs(store: Store, restored: dict[int, Patch], survey: LogSurvey) -> list[Repair]:
    """Records whose head can be made good, in the regions and behind the log's end."""
    regions = sorted([*survey.regions, *survey.tail], key=lambda region: region.phy_offset)
    if not any(region.used_bytes for region in regions):
        return []
    known = lost_by_queue_entries(store, regions)
    with store.with_log(restored_log(store, restored)) as view:
        return [
            repair
            for number, region in enumerate(regions)
            for repair in repairs_in(
                view.log, region, known.get(number, []), is_tail=region.phy_offset >= survey.end_phy_offset
            )
        ]


def _wrong_blanks(store: Store, survey: LogSurvey, known: dict[int, list[LostRecord]]) -> dict[int, Patch]:
    """Zeros over blanks in which whole records lie that queue entries point to: no broker wrote them, they are damage."""
    return {
        blank.phy_offset: Patch(0, PREFIX.size_bytes)
        for blank in survey.blanks
        if any(_stands(store, lost) for lost in known.get(id(blank), ()))
    }


def _apart(wrong: dict[int, Patch], restored: dict[int, Patch]) -> dict[int, Patch]:
    """The former without those that the latter reach into."""
    taken = [(at, at + patch.end) for at, patch in restored.items()]
    return {at: p for at, p in wrong.items() if not any(low < at + p.end and at < high for low, high in taken)}


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
