"""Plan how to keep every readable message: close holes, clean the tail, rebuild the derived files (policy ``keep``).

The dry run and the builder that an apply calls run the same steps on the same store, so they produce the same bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from store_core.broker.load import batch_topics_of
from store_core.broker.versions import Version, behaviour_of
from store_core.derive.queues import QueueBuilder
from store_core.findings import Finding, finding
from store_core.layout.paths import no_queue_reason
from store_core.layout.record import HEAD
from store_core.read.log_files import is_new
from store_core.recovery.damage_scan import LogSurvey, Ranges, Region, WalkRules
from store_core.recovery.damaged_region import ClosedRegion, close_region, without_unfounded
from store_core.recovery.derived_files import Derivation, DerivedChanges, Progress
from store_core.recovery.header_repair import Repair
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.lmq_lists import renamed
from store_core.recovery.log_edits import EditedLog, edited_log, restored_log
from store_core.recovery.lost_config import Configuration, DelayLevel, delay_levels_from_log, recovered_configuration
from store_core.recovery.lost_from_queues import lost_by_queue_entries
from store_core.recovery.lost_messages import (
    LostMessages,
    SkippedEarlier,
    beyond_log_end,
    only_indexed,
    weighed,
)
from store_core.recovery.lost_record import LostRecord, LostRun, more_complete
from store_core.recovery.lost_table import Lost, LostRows, LostTable
from store_core.recovery.misdirected_records import Move
from store_core.recovery.queue_gaps import GapEntries, fill_gaps
from store_core.recovery.replica import Siblings
from store_core.recovery.shifted_records import Shift
from store_core.recovery.skipped_offsets import Kept, QueueBounds, Skipping
from store_core.recovery.state import RecoveryState, read_state
from store_core.recovery.wrong_batch import wrong_batches
from store_core.recovery.wrong_queue import is_free, misplaced
from store_core.scan.walk_progress import WalkProgress, behind
from store_core.storage.buffers import give_freed_memory_back
from store_core.storage.overlay import Patch
from store_core.storage.scratch import scratch_folder
from store_core.storage.sequence import SegmentSequence
from store_core.storage.settings import Settings
from store_core.storage.store import QueueKey, Store

_MAX_ROUNDS: Final = 4


@dataclass(slots=True)
class KeepPlan:
    """The edited log, its derived files, and what is lost.

    * ``lost``: known records that cannot be kept; ``given_up``: readable records that the plan removes
    * ``unknown``: regions that may have held records of which nothing is known
    * ``only_indexed``: how many lost messages only the index names; None for too many to count
    * ``unfilled``: ranges of queue offsets for which no message is left; ``dead_messages`` of these get a dead entry
    * ``kept``: lost messages that get a tombstone although dead entries were requested
    * ``own_end_phy_offset``: end of the log's last record before records from siblings were added
    * ``moved``: segments that had wrong names; ``shifted``: ranges that were some bytes away from their offset
    * ``earlier``: ranges before the log's first byte that siblings have and the caller did not request
    * ``repairs``: records whose damaged head is repaired
    * ``configuration``: new contents of config files, except progress after the queues' ends, which is set to the ends;
      None: they stay unchanged
    * ``property_crc``: new records carry a property CRC
    """

    survey: LogSurvey
    closed_regions: list[ClosedRegion]
    edited: EditedLog
    derivation: Derivation
    queue_changes: DerivedChanges = field(default_factory=DerivedChanges)
    index_changes: DerivedChanges = field(default_factory=DerivedChanges)
    lost: LostMessages = field(default_factory=LostMessages)
    unknown: list[Region] = field(default_factory=list)
    only_indexed: int | None = 0
    given_up: list[LostRecord] = field(default_factory=list)
    unfilled: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    configuration: Configuration | None = None
    property_crc: bool = False
    options: KeepOptions = field(default_factory=KeepOptions)
    own_end_phy_offset: int = 0
    repairs: list[Repair] = field(default_factory=list)
    dead_messages: int = 0
    kept: Kept = field(default_factory=Kept)
    moved: list[Move] = field(default_factory=list)
    shifted: list[Shift] = field(default_factory=list)
    earlier: list[SkippedEarlier] = field(default_factory=list)

    def lost_runs(self) -> tuple[LostRun, ...]:
        """Return the lost messages as runs for a report."""
        indexed = [LostRun(None, None, None, None, self.only_indexed, 0)] if self.only_indexed != 0 else []
        return (*self.lost.runs(self.unknown), *indexed)

    @property
    def skips(self) -> bool:
        return self.options.skips

    @property
    def is_empty(self) -> bool:
        """True if the log has no readable record, so that nothing must be changed."""
        return bool(self.findings)


def walk_rules(settings: Settings, version: Version) -> WalkRules:
    """Return which records a broker of a release with these settings walks over."""
    behaviour = behaviour_of(version)
    forced = behaviour.verifies_property_crc and settings.flag("forceVerifyPropCRC")
    return WalkRules(
        behaviour.reads_v2,
        behaviour.reads_v6_hosts,
        behaviour.batch_queues,
        checks_property_crc=forced,
        property_crc=forced or settings.flag("enabledAppendPropCRC"),
    )


@contextmanager
def plan_keep(
    store: Store,
    rules: WalkRules | None = None,
    options: KeepOptions | None = None,
    *,
    jobs: int = 1,
    walks: WalkProgress | None = None,
) -> Iterator[KeepPlan]:
    """Yield a plan that keeps every readable message. Only scratch files are written; they are removed at the end.

    ``jobs`` threads walk the log as it is while queues and index are built; if the log needs edits, it is walked and
    they are built again. ``walks`` gets the progress of both walks and of all work that damage requires.

    Raises:
        FailedError: the store cannot be read, or there is no room for scratch files.
    """
    rules, options = rules or WalkRules(), options or KeepOptions()
    with ExitStack() as stack:
        found = stack.enter_context(_plan_keep(store, rules, options, jobs, walks or WalkProgress(None, 0)))
        if refused := tuple(found.derivation.without_queue):
            stack.close()
            rules = replace(rules, refused=refused)
            found = stack.enter_context(_plan_keep(store, rules, options, jobs, WalkProgress(None, 0)))
        yield found


@contextmanager
def _plan_keep(
    store: Store, rules: WalkRules, options: KeepOptions, jobs: int, walks: WalkProgress
) -> Iterator[KeepPlan]:
    """Yield a plan, which has records ``without_queue`` if it must be made again without these."""
    bounds = QueueBounds()
    sinks = (bounds.add,) if options.skips else ()
    with ExitStack() as stack:
        siblings = stack.enter_context(Siblings(store, options.siblings, options.sibling_configs))
        scratch = stack.enter_context(scratch_folder())
        table = stack.enter_context(LostTable())
        derive = partial(Derivation, store, scratch=scratch, batch_topics=batch_topics_of(store), jobs=jobs)
        derive = partial(derive, names_all=not rules.refused)
        derive_again = partial(_derive_again, stack, store, derive)
        derivation = stack.enter_context(derive(store, walks=False))
        state = read_state(
            store, rules, siblings, options, sinks, first=derivation, jobs=jobs, walks=walks, table=table
        )
        survey = state.survey
        as_found = restored_log(store, state.restored, state.placed)
        table.log = stack.enter_context(store.with_log(as_found)).log
        skipping = Skipping(store, bounds) if options.skips else None
        closing = _Closing(store, skipping, state.known, rules.property_crc, walks)
        closed_regions = closing.closed_regions(survey.regions) if options.fill else closing.left_open(survey.regions)
        close = partial(edited_log, store, end_phy_offset=survey.end_phy_offset, placed=state.placed)
        edited = close(closed_regions, restored=state.restored)
        if state.is_first and survey.is_whole:
            derivation.finish()
            walks.leave_out()
        else:  # the edited log has other records
            derivation = derive_again(derivation, edited.log, walks.next())
        for rounds_left in reversed(range(_MAX_ROUNDS)):  # a corrected record can reveal other misplaced ones
            if not _correct_places(store, closed_regions, edited, derivation, state, is_last=not rounds_left):
                break
            edited = close(closed_regions, restored=state.restored)
            derivation = derive_again(derivation, edited.log, walks.more())
        found = KeepPlan(
            survey,
            closed_regions,
            edited,
            derivation,
            property_crc=rules.property_crc,
            options=replace(options, loans=tuple(state.loans)),
            own_end_phy_offset=state.own_end_phy_offset,
            repairs=state.repairs,
            kept=closing.skipping.kept if closing.skipping is not None else Kept(),
            moved=state.moved,
            shifted=state.shifted,
            earlier=weighed(store, state.earlier, edited.log.min_phy_offset, survey.last_store_timestamp_ms),
        )
        if not survey.last_phy_offset and not survey.messages:
            _keep_unread_log(store, found)
        elif not derivation.without_queue or rules.refused:  # else the caller plans again without these records
            entries = _fill_gaps(store, found, table, walks, partial(close, restored=state.restored), derive_again)
            _correct_own_offsets(store, found)
            found.queue_changes = found.derivation.queue_changes(entries.of)
            found.index_changes = found.derivation.index_changes()
            found.configuration = recovered_configuration(
                store, siblings.stores, found.derivation.queue_keys, partial(_delays, store, found, walks)
            )
            _report_lost(store, found, table, walks)
        yield found


def _keep_unread_log(store: Store, found: KeepPlan) -> None:
    """Drop all changes if the log has no readable record.

    An unmounted disk looks the same, and the queues may be all that is left.
    """
    if not is_new(store):
        text = f"the log holds no record, while {len(store.queues)} queues stand: nothing is changed"
        found.findings.append(finding("S007", text))
    found.edited = EditedLog(store.log)


def _derive_again(
    stack: ExitStack,
    store: Store,
    derive: Callable[..., Derivation],
    old: Derivation,
    log: SegmentSequence,
    on_progress: Progress | None,
) -> Derivation:
    """Close the derived files of the old log and return those of ``log``."""
    old.close()
    give_freed_memory_back()
    view = stack.enter_context(store.with_log(log))
    return stack.enter_context(derive(view, on_progress=on_progress))


def _fill_gaps(
    store: Store,
    found: KeepPlan,
    table: LostTable,
    walks: WalkProgress,
    close: Callable[[list[ClosedRegion]], EditedLog],
    derive_again: Callable[[Derivation, SegmentSequence, Progress | None], Derivation],
) -> GapEntries:
    """Fill missing queue offsets, in the log too, and build derived files again if other entries change."""
    entries, is_other = fill_gaps(store, found, table, walks)
    found.edited = close(found.closed_regions)
    # A new tombstone also has an ext unit, which moves the units of all messages after it.
    if is_other or (entries and store.ext_queues):
        found.derivation = derive_again(found.derivation, found.edited.log, walks.more())
    return entries


def _delays(store: Store, found: KeepPlan, walks: WalkProgress) -> dict[int, DelayLevel]:
    with store.with_log(found.edited.log) as view:
        return delay_levels_from_log(view, found.derivation.queue_ends(), walks.more())


def _correct_places(
    store: Store,
    closed_regions: list[ClosedRegion],
    edited: EditedLog,
    derivation: Derivation,
    state: RecoveryState,
    *,
    is_last: bool,
) -> bool:
    """Correct records and tombstones whose queue or queue offset is wrong in the edited log; return True if any was."""
    if not is_last:
        moved = _restore_misplaced(store, edited, derivation, state)
        if _renumber_tombstones(closed_regions, derivation.queues()) or moved:
            return True
    return without_unfounded(closed_regions, derivation.queues(), derivation.rows)


def _restore_misplaced(store: Store, edited: EditedLog, derivation: Derivation, state: RecoveryState) -> bool:
    """Restore the queue and queue offset that misplaced records were sent to; return True if there were any."""
    restored = Ranges((at, at + patch.end) for at, patch in state.restored.items())
    closed = Ranges((region.phy_offset, region.end_phy_offset) for region in state.survey.regions)
    batches = wrong_batches(store, edited.log, derivation.rows, derivation.batch_queues().queue_keys())
    repairs = [repair for repair in batches if is_free(repair, closed, restored)]
    repairs += (
        repair for repair in renamed(store, edited.log, derivation.queues()) if is_free(repair, closed, restored)
    )
    repairs += misplaced(store, edited.log, derivation.queues(), closed, restored)
    state.repairs += repairs
    state.restored |= {at: Patch(0, len(data), ((0, data),)) for repair in repairs for at, data in repair.changes}
    return bool(repairs)


def _renumber_tombstones(closed_regions: list[ClosedRegion], builder: QueueBuilder) -> bool:
    """Give tombstones the queue offsets that their queue leaves free; return True if any changed.

    A damaged head can name a wrong queue offset.
    """
    placed: dict[int, dict[str, int]] = {}
    for key in builder.queue_keys() if closed_regions else ():
        for odd in builder.summary(key).misnumbered:
            if odd.placed_at is not None:
                placed.setdefault(odd.phy_offset, {})[key.topic] = odd.placed_at
    found, in_order = False, sorted(placed)
    for index, closed_region in enumerate(closed_regions):
        places = in_order[
            bisect_left(in_order, closed_region.phy_offset) : bisect_left(in_order, closed_region.end_phy_offset)
        ]
        if tombstones := closed_region.tombstones_and_lost(places) if places else []:
            known: list[Lost] = []
            for at, lost in tombstones:
                if isinstance(lost, LostRecord) and lost != closed_region.given_up:
                    known.append(_with_queue_offsets(lost, placed.get(at, {})))
                elif isinstance(lost, LostRows):
                    known.append(lost)
            closed_again = close_region(closed_region.region, known, property_crc=closed_region.property_crc)
            closed_again.unplaced += closed_region.unplaced
            closed_again.skipped = closed_region.skipped
            closed_regions[index], found = closed_again, True
    return found


def _with_queue_offsets(lost: LostRecord, numbers: Mapping[str, int]) -> LostRecord:
    """Return ``lost`` with the queue offsets of ``numbers``, by topic, in its queue and its light queues."""
    lights = tuple((name, numbers.get(name, number)) for name, number in lost.light_queues)
    return replace(lost, queue_offset=numbers.get(lost.topic, lost.queue_offset), light_queues=lights)


@dataclass(slots=True)
class _Closing:
    """Closes each damaged region.

    ``known``: lost records that queue entries name, by the region's number. ``skipping``: which of them may get dead entries.
    """

    store: Store
    skipping: Skipping | None
    known: dict[int, list[Lost]]
    property_crc: bool
    walks: WalkProgress
    topics: frozenset[str] = field(init=False)  # topics that have queues

    def __post_init__(self) -> None:
        queues = (*self.store.queues, *self.store.batch_queues)
        self.topics = frozenset(key.topic for key in queues)

    def closed_regions(self, regions: list[Region]) -> list[ClosedRegion]:
        """Close the regions. Two that would both remove the same readable neighbour are closed as one."""
        lost_by_region = [self._lost_of(number, region) for number, region in enumerate(regions)]
        if self.skipping is not None:
            self.skipping.look_at(lost for lost_records in lost_by_region for lost in lost_records)
            self.skipping.decide()
        closed_regions: list[ClosedRegion] = []
        on_progress, done = self.walks.piece(sum(region.size_bytes for region in regions)), 0
        for region, lost_records in zip(regions, lost_by_region, strict=True):
            closed_region = self._close(region, lost_records, behind(on_progress, done))
            done += region.size_bytes
            if closed_regions and closed_regions[-1].end_phy_offset > closed_region.phy_offset:
                closed_region = self._close_as_one(closed_regions.pop(), closed_region, lost_records)
            closed_regions.append(closed_region)
        return closed_regions

    def left_open(self, regions: list[Region]) -> list[ClosedRegion]:
        """Return the regions unchanged, with their lost records."""
        return [ClosedRegion(region, unplaced=self._lost_of(number, region)) for number, region in enumerate(regions)]

    def _lost_of(self, number: int, region: Region) -> list[Lost]:
        """Return the lost records of a region, and take them out of ``known`` and, unless readable, out of the region."""
        lost_records = self._merged(region, self.known.pop(number, []))
        region.lost = [lost for lost in region.lost if lost.is_readable]
        return lost_records

    def _close(self, region: Region, lost_records: list[Lost], on_progress: Progress | None = None) -> ClosedRegion:
        known, dead = self.skipping.parted(lost_records) if self.skipping is not None else (lost_records, [])
        closed_region = close_region(region, known, property_crc=self.property_crc, on_progress=on_progress)
        closed_region.skipped = dead
        return closed_region

    def _close_as_one(
        self, before: ClosedRegion, closed_region: ClosedRegion, lost_records: list[Lost]
    ) -> ClosedRegion:
        given_up = [replace(g, is_readable=True) for g in {before.given_up, closed_region.given_up} if g is not None]
        region = closed_region.region
        joined = replace(
            before.region,
            end_phy_offset=region.end_phy_offset,
            reaches_segment_end=region.reaches_segment_end,
            after=region.after,
            blank_follows=region.blank_follows,
            used_bytes=before.region.used_bytes + region.used_bytes,
            lost=[*before.region.lost, *given_up, *region.lost],
        )
        with_tombstone = [lost for lost in before.tombstones if lost != before.given_up]
        lost_of_both = [*with_tombstone, *before.unplaced, *before.skipped, *lost_records]
        return self._close(joined, self._merged(joined, lost_of_both))

    def _merged(self, region: Region, by_entries: list[Lost]) -> list[Lost]:
        """Merge the lost records of a region that record heads name with those that queue entries name.

        A head has more fields, except the tags code; queue id and queue offset of a damaged record are taken from its entry.
        """
        headers = {lost.phy_offset: None for lost in region.lost}
        places = sorted(place for place in headers if place is not None)
        apart = [
            record for lost in by_entries for record in (lost.apart(places) if isinstance(lost, LostRows) else (lost,))
        ]
        entries = {lost.phy_offset: lost for lost in apart if isinstance(lost, LostRecord)}
        merged: list[Lost] = []
        for head in region.lost:
            entry = entries.get(head.phy_offset)
            is_known = head.topic in self.topics
            record = head if entry is None else more_complete(head, entry, is_topic_known=is_known)
            if not no_queue_reason(record.topic):
                merged.append(record)
        return [*merged, *(lost for lost in apart if isinstance(lost, LostRows) or lost.phy_offset not in headers)]


def _correct_own_offsets(store: Store, found: KeepPlan) -> None:
    """Patch the own offset of good records where it differs from their position: message ids contain it."""
    field_ = HEAD.field_struct("own_phy_offset")
    closed = Ranges(
        (closed_region.phy_offset, closed_region.end_phy_offset)
        for closed_region in found.closed_regions
        if closed_region.pieces
    )
    done = {repair.phy_offset for repair in found.repairs if "own_phy_offset" in repair.fields}
    for phy_offset in found.survey.wrong_own_offsets:
        segment = store.log.find(phy_offset)
        if segment is not None and phy_offset not in done and not closed.overlap(phy_offset, phy_offset + 1):
            at = phy_offset + HEAD.offset_of("own_phy_offset") - segment.phy_offset
            found.edited.add_patch(segment.path, at, field_.pack(phy_offset))


def _report_lost(store: Store, found: KeepPlan, table: LostTable, walks: WalkProgress) -> None:
    if found.options.fill:
        found.given_up = [
            closed_region.given_up for closed_region in found.closed_regions if closed_region.given_up is not None
        ]
        found.given_up += [
            lost for closed_region in found.closed_regions for lost in closed_region.region.lost if lost.is_readable
        ]
    after_end = [*found.survey.tail, beyond_log_end(store, found.survey)]
    named = [lost for records in lost_by_queue_entries(store, after_end, table, walks).values() for lost in records]
    found.lost = LostMessages(
        [
            lost
            for closed_region in found.closed_regions
            for lost in (*closed_region.tombstones, *closed_region.unplaced, *closed_region.skipped)
        ],
        found.unfilled,
        beyond_end=named,
        queues=found.derivation.queues(),
    )
    # No head, no entry and no gap names a record of such a region; where every queue is whole, it held none.
    found.unknown = [
        closed_region.region
        for closed_region in found.closed_regions
        if closed_region.region.may_hold_records
        and not (closed_region.tombstones or closed_region.unplaced or closed_region.skipped)
    ]
    found.only_indexed = only_indexed(store, found.derivation.sizes, found.survey, after_end, named)
