"""Keep everything readable: close holes, clean the tail, and let the derived files follow (policy ``keep``).

The same steps serve the dry run and the builder that an apply calls: both start from the store as it is and come to the
same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from store_core.broker.load import batch_topics_of
from store_core.broker.versions import Version, behaviour_of
from store_core.findings import Finding, finding
from store_core.layout.record import HEAD
from store_core.mend.salvage.configuration import Configuration, salvaged_configuration
from store_core.mend.salvage.delays import DelayLevel, told_delays
from store_core.mend.salvage.derived import Derivation, DerivedChanges
from store_core.mend.salvage.displaced import Move
from store_core.mend.salvage.earlier import LeftOut, weighed
from store_core.mend.salvage.evidence import lost_by_queue_entries
from store_core.mend.salvage.fence import Fence, close_region
from store_core.mend.salvage.gaps import MOST_GAP_NUMBERS, Kept, QueueBounds, fill_gaps, skippable
from store_core.mend.salvage.ground import Ground, read_ground
from store_core.mend.salvage.mended import MendedLog, mended_log
from store_core.mend.salvage.misplaced import misplaced
from store_core.mend.salvage.options import KeepOptions
from store_core.mend.salvage.repair import Repair
from store_core.mend.salvage.sibling import Siblings
from store_core.mend.salvage.survey import LogSurvey, LostRecord, Region, WalkRules
from store_core.scan.walks import Walks
from store_core.storage.overlay import Patch
from store_core.storage.settings import Settings
from store_core.storage.store import QueueKey, Store

_MOST_MISSING_SEGMENTS: Final = 64  # entries that point further behind the log are taken for wild


@dataclass(slots=True)
class Salvage:
    """The log as it will be and what follows from it.

    ``lost`` are the records that cannot be kept, as far as they are known; ``unknown`` are regions that held records
    nobody can name; ``given_up`` readable ones that had to go; ``unfilled`` numbers of queues that no message has any more;
    ``dead`` those of them that get a dead entry; ``kept`` got a tombstone although numbers are to be skipped.
    ``own_end_phy_offset``: where the log's last record ended before anything came from siblings.
    ``moved``: segments that stood under each other's names.
    ``earlier``: what siblings have before the log's first byte, and was not asked for.
    ``repairs``: records whose head was damaged, and is made good.
    ``configuration``: config files as they will be, progress behind the queues' ends apart, which is set to these; None: they stay.
    ``property_crc``: new records carry one.
    """

    survey: LogSurvey
    fences: list[Fence]
    mended: MendedLog
    derivation: Derivation
    queue_changes: DerivedChanges = field(default_factory=DerivedChanges)
    index_changes: DerivedChanges = field(default_factory=DerivedChanges)
    lost: list[LostRecord] = field(default_factory=list)
    unknown: list[Region] = field(default_factory=list)
    given_up: list[LostRecord] = field(default_factory=list)
    unfilled: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    configuration: Configuration | None = None
    property_crc: bool = False
    options: KeepOptions = field(default_factory=KeepOptions)
    own_end_phy_offset: int = 0
    repairs: list[Repair] = field(default_factory=list)
    dead: list[tuple[QueueKey, int]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    moved: list[Move] = field(default_factory=list)
    earlier: list[LeftOut] = field(default_factory=list)

    @property
    def skips(self) -> bool:
        return self.options.skips

    @property
    def is_empty(self) -> bool:
        """Whether there is no log to go by, so that nothing must be changed."""
        return bool(self.findings)


def walk_rules(settings: Settings, version: Version) -> WalkRules:
    """What a release with these settings walks over."""
    behaviour = behaviour_of(version)
    forced = behaviour.verifies_property_crc and settings.flag("forceVerifyPropCRC")
    return WalkRules(
        behaviour.reads_v2,
        behaviour.reads_v6_hosts,
        checks_property_crc=forced,
        property_crc=forced or settings.flag("enabledAppendPropCRC"),
    )


@contextmanager
def salvage(
    store: Store,
    rules: WalkRules | None = None,
    options: KeepOptions | None = None,
    *,
    jobs: int = 1,
    walks: Walks | None = None,
) -> Iterator[Salvage]:
    """Work out how everything readable is kept; nothing is written but scratch files, which vanish at the end.

    ``walks`` is told of the walk over the log as it is, by ``jobs`` threads, on which queues and index are built, and of a second one
    where the log will be another, so that they are built anew from that; and of all that damage needs besides. Raises FailedError where the store cannot be read or there is no room for scratch files.
    """
    rules, options = rules or WalkRules(), options or KeepOptions()
    walks = walks or Walks(None, 0)
    bounds = QueueBounds()
    sinks = (bounds.add,) if options.skips else ()
    with ExitStack() as stack:
        siblings = stack.enter_context(Siblings(store, options.siblings, options.sibling_configs))
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="rmqctl-")))
        derive = partial(Derivation, store, scratch=scratch, batch_topics=batch_topics_of(store), jobs=jobs)
        derivation = stack.enter_context(derive(store, walks=False))
        ground = read_ground(store, rules, siblings, options, sinks, first=derivation, jobs=jobs, walks=walks)
        survey = ground.survey
        closing = _Closing(store, options, bounds, ground.known, rules.property_crc)
        fences = closing.fences(survey.regions) if options.fill else closing.left_open(survey.regions)
        mended = mended_log(store, fences, survey.end_phy_offset, restored=ground.restored)
        if ground.is_first and survey.is_whole:
            derivation.finish()
            walks.leave_out()
        else:  # other records will be in it
            derivation.close()
            view = stack.enter_context(store.with_log(mended.log))
            derivation = stack.enter_context(derive(view, on_progress=walks.next()))
        if _moved(store, mended, derivation, ground):
            derivation.close()
            mended = mended_log(store, fences, survey.end_phy_offset, restored=ground.restored)
            view = stack.enter_context(store.with_log(mended.log))
            derivation = stack.enter_context(derive(view, on_progress=walks.more()))
        found = Salvage(
            survey,
            fences,
            mended,
            derivation,
            property_crc=rules.property_crc,
            options=replace(options, loans=tuple(ground.loans)),
            own_end_phy_offset=ground.own_end_phy_offset,
            repairs=ground.repairs,
            kept=closing.kept,
            moved=ground.moved,
            earlier=weighed(store, ground.earlier, mended.log.min_phy_offset, survey.last_store_timestamp_ms),
        )
        if not survey.last_phy_offset and not survey.messages:
            # Nothing at all can be read: a disk that is not mounted looks so, and queues may be all that is left.
            found.findings.append(
                finding("S007", f"the log holds no record, while {len(store.queues)} queues stand: nothing is changed")
            )
            found.mended = MendedLog(store.log)
            yield found
            return
        entries = fill_gaps(store, found)
        found.mended = mended_log(store, found.fences, survey.end_phy_offset, restored=ground.restored)
        _correct_own_offsets(store, found)
        found.queue_changes = derivation.queue_changes(lambda key, number: entries.get((key, number)))
        found.index_changes = derivation.index_changes()
        found.configuration = salvaged_configuration(
            store, siblings.stores, derivation.queue_keys, partial(_delays, store, found, walks)
        )
        _tell_lost(store, found)
        yield found


def _delays(store: Store, found: Salvage, walks: Walks) -> dict[int, DelayLevel]:
    with store.with_log(found.mended.log) as view:
        return told_delays(view, found.derivation.queue_ends(), walks.more())


def _moved(store: Store, mended: MendedLog, derivation: Derivation, ground: Ground) -> bool:
    """Whether records go back to the queue and number that they were sent to; the ground then has them restored."""
    taken = [(at, at + patch.end) for at, patch in ground.restored.items()]
    moved = [
        repair
        for repair in misplaced(store, mended.log, derivation.queues())
        if not any(low < repair.phy_offset + repair.size_bytes and repair.phy_offset < high for low, high in taken)
    ]
    ground.repairs += moved
    ground.restored |= {at: Patch(0, len(data), ((0, data),)) for repair in moved for at, data in repair.changes}
    return bool(moved)


@dataclass(slots=True)
class _Closing:
    """A fence for each region. ``known`` are records that queue entries place, by the region's number."""

    store: Store
    options: KeepOptions
    bounds: QueueBounds
    known: dict[int, list[LostRecord]]
    property_crc: bool
    kept: list[Kept] = field(default_factory=list)

    def fences(self, regions: list[Region]) -> list[Fence]:
        """Two that would take the same neighbour become one."""
        all_told = [_merged(region, self.known.get(number, [])) for number, region in enumerate(regions)]
        dead: set[LostRecord] = set()
        if self.options.skips:
            dead, self.kept = skippable(self.store, (lost for told in all_told for lost in told), self.bounds)
        fences: list[Fence] = []
        for region, told in zip(regions, all_told, strict=True):
            fence = self._fence(region, told, dead)
            if fences and fences[-1].end_phy_offset > fence.phy_offset:
                fence = self._as_one(fences.pop(), fence, told, dead)
            fences.append(fence)
        return fences

    def left_open(self, regions: list[Region]) -> list[Fence]:
        """Regions that stay as they are, with what is known of them."""
        return [Fence(r, unplaced=_merged(r, self.known.get(number, []))) for number, r in enumerate(regions)]

    def _fence(self, region: Region, told: list[LostRecord], dead: set[LostRecord]) -> Fence:
        fence = close_region(region, [lost for lost in told if lost not in dead], property_crc=self.property_crc)
        fence.skipped = [lost for lost in told if lost in dead]
        return fence

    def _as_one(self, before: Fence, fence: Fence, told: list[LostRecord], dead: set[LostRecord]) -> Fence:
        given_up = [replace(g, is_readable=True) for g in {before.given_up, fence.given_up} if g is not None]
        region = fence.region
        both = replace(
            before.region,
            end_phy_offset=region.end_phy_offset,
            reaches_segment_end=region.reaches_segment_end,
            after=region.after,
            blank_follows=region.blank_follows,
            used_bytes=before.region.used_bytes + region.used_bytes,
            lost=[*before.region.lost, *given_up, *region.lost],
        )
        stood = [p.tombstone_of for p in before.pieces if p.tombstone_of not in (None, before.given_up)]
        others = [lost for lost in (*stood, *before.unplaced, *before.skipped, *told) if lost is not None]
        return self._fence(both, _merged(both, others), dead)


def _merged(region: Region, by_entries: list[LostRecord]) -> list[LostRecord]:
    """What a region lost, told by headers and by queue entries; a header knows more, but for the tags code."""
    entries = {lost.phy_offset: lost for lost in by_entries}
    headers = {lost.phy_offset for lost in region.lost}
    told = [
        replace(h, tags_code=entries[h.phy_offset].tags_code) if h.phy_offset in entries else h for h in region.lost
    ]
    return [*told, *(lost for lost in by_entries if lost.phy_offset not in headers)]


def _correct_own_offsets(store: Store, found: Salvage) -> None:
    """Good records that say they lie elsewhere get their own offset right: ids made of it are wrong otherwise."""
    field_ = HEAD.field_struct("own_phy_offset")
    for phy_offset in found.survey.wrong_own_offsets:
        segment = store.log.find(phy_offset)
        if segment is not None:
            at = phy_offset + HEAD.offset_of("own_phy_offset") - segment.phy_offset
            found.mended.add_patch(segment.path, at, field_.pack(phy_offset))


def _tell_lost(store: Store, found: Salvage) -> None:
    placed = {p.tombstone_of for fence in found.fences for p in fence.pieces if p.tombstone_of is not None}
    others = {lost for fence in found.fences for lost in (*fence.unplaced, *fence.skipped)}
    if found.options.fill:
        found.given_up = [fence.given_up for fence in found.fences if fence.given_up is not None]
        found.given_up += [lost for fence in found.fences for lost in fence.region.lost if lost.is_readable]
    end = max(store.log.max_phy_offset, found.survey.end_phy_offset)
    # A last segment that is gone leaves no region, but entries that point behind the log.
    missing_end = Region(end, end + _MOST_MISSING_SEGMENTS * store.log.file_size_bytes, end, end)
    tail = lost_by_queue_entries(store, [*found.survey.tail, missing_end])
    behind = {lost for records in tail.values() for lost in records}
    known = placed | others | behind
    told = {(QueueKey(lost.topic, lost.queue_id), lost.queue_offset) for lost in known}
    missing = {
        LostRecord(key.topic, key.queue_id, n)
        for key, first, count in found.unfilled
        for n in range(first, first + min(count, MOST_GAP_NUMBERS))
        if (key, n) not in told
    }
    found.lost = [*(known | missing)]
    # A region about which no header, no entry and no gap tells anything; where every queue is whole nothing was in it.
    found.unknown = [
        fence.region
        for fence in found.fences
        if fence.region.may_hold_records
        and not any(p.tombstone_of for p in fence.pieces)
        and not (fence.unplaced or fence.skipped)
    ]
