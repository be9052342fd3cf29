"""Keep everything readable: close holes, clean the tail, and let the derived files follow (policy ``keep``).

The same steps serve the dry run and the builder that an apply calls: both start from the store as it is and come to the
same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from store_core.broker.load import batch_topics_of
from store_core.broker.versions import Version, behaviour_of
from store_core.codec.record import body_crc_ok
from store_core.derive.queues import Entry
from store_core.findings import Finding, finding
from store_core.layout.queue import DEAD_ENTRY_SIZE_BYTES, ENTRY
from store_core.layout.record import HEAD, PREFIX
from store_core.mend.salvage.derived import Derivation, DerivedChanges
from store_core.mend.salvage.evidence import lost_by_queue_entries
from store_core.mend.salvage.fence import Fence, Piece, close_region
from store_core.mend.salvage.mended import MendedLog, mended_log
from store_core.mend.salvage.survey import LogSurvey, LostRecord, Region, WalkRules, survey_log
from store_core.read.records import read_message
from store_core.storage.overlay import Patch, overlaid
from store_core.storage.settings import Settings
from store_core.storage.store import QueueKey, Store

Progress = Callable[[int], None]
_MOST_MISSING_SEGMENTS: Final = 64  # entries that point further behind the log are taken for wild
_MOST_GAP_NUMBERS: Final = 1 << 20  # more missing numbers than this are not filled one by one


@dataclass(slots=True)
class Salvage:
    """The log as it will be and what follows from it.

    ``lost`` are the records that cannot be kept, as far as they are known; ``unknown`` are regions that held records
    nobody can name; ``given_up`` readable ones that had to go; ``unfilled`` numbers of queues that get a filler entry.
    ``lowers_progress``: consumers' progress behind the queues' ends is set to these. ``property_crc``: new records carry one.
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
    lowers_progress: bool = True
    property_crc: bool = False

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
def salvage(store: Store, rules: WalkRules | None = None, *, on_progress: Progress | None = None) -> Iterator[Salvage]:
    """Work out how everything readable is kept; nothing is written but scratch files, which vanish at the end.

    Raises FailedError where the store cannot be read or there is no room for scratch files.
    """
    rules = rules or WalkRules()
    survey, known = _survey(store, rules, on_progress)
    fences = _closed(survey.regions, known, property_crc=rules.property_crc)
    mended = mended_log(store, fences, survey.end_phy_offset)
    with (
        TemporaryDirectory(prefix="rmqctl-") as scratch,
        store.with_log(mended.log) as view,
        Derivation(store, view, Path(scratch), batch_topics=batch_topics_of(store)) as derivation,
    ):
        found = Salvage(survey, fences, mended, derivation, property_crc=rules.property_crc)
        if not survey.last_phy_offset and not survey.messages:
            # Nothing at all can be read: a disk that is not mounted looks so, and queues may be all that is left.
            found.findings.append(
                finding("S007", f"the log holds no record, while {len(store.queues)} queues stand: nothing is changed")
            )
            found.mended = MendedLog(store.log)
            yield found
            return
        entries = _fill_gaps(store, found)
        found.mended = mended_log(store, found.fences, survey.end_phy_offset)
        _correct_own_offsets(store, found)
        found.queue_changes = derivation.queue_changes(lambda key, number: entries.get((key, number)))
        found.index_changes = derivation.index_changes()
        _tell_lost(store, found)
        yield found


def _survey(
    store: Store, rules: WalkRules, on_progress: Progress | None
) -> tuple[LogSurvey, dict[int, list[LostRecord]]]:
    """The walk over the log, and the records that queue entries place in its regions, by the region's number.

    A blank in which whole records lie that queue entries point to was never written by a broker: it is damage.
    """
    survey = survey_log(store, rules=rules, on_progress=on_progress)
    both = sorted([*survey.regions, *survey.blanks], key=lambda r: r.phy_offset)
    placed = lost_by_queue_entries(store, both)
    known = {id(region): placed[number] for number, region in enumerate(both) if number in placed}
    wrong = [blank for blank in survey.blanks if any(_stands(store, k) for k in known.get(id(blank), ()))]
    if not wrong:
        return survey, {n: known[id(region)] for n, region in enumerate(survey.regions) if id(region) in known}
    patches: dict[Path, list[Patch]] = {}
    for blank in wrong:
        segment = store.log.find(blank.phy_offset)
        assert segment is not None  # the blank was read from it
        at = blank.phy_offset - segment.phy_offset
        patches.setdefault(segment.path, []).append(Patch(at, at + PREFIX.size_bytes))
    with store.with_log(overlaid(store.log, patches, store.log.segments)) as view:
        survey = survey_log(view, rules=rules)
    return survey, lost_by_queue_entries(store, survey.regions)


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


def _closed(regions: list[Region], known: dict[int, list[LostRecord]], *, property_crc: bool) -> list[Fence]:
    """A fence for each region; two that would take the same neighbour become one."""
    fences: list[Fence] = []
    for number, region in enumerate(regions):
        told = _merged(region, known.get(number, []))
        fence = close_region(region, told, property_crc=property_crc)
        if fences and fences[-1].end_phy_offset > fence.phy_offset:
            before = fences.pop()
            given_up = [replace(g, is_readable=True) for g in {before.given_up, fence.given_up} if g is not None]
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
            known_too = _merged(both, [lost for lost in (*stood, *before.unplaced, *told) if lost is not None])
            fence = close_region(both, known_too, property_crc=property_crc)
        fences.append(fence)
    return fences


def _merged(region: Region, by_entries: list[LostRecord]) -> list[LostRecord]:
    """What a region lost, told by headers and by queue entries; a header knows more."""
    headers = {lost.phy_offset: lost for lost in region.lost}
    return [*region.lost, *(lost for lost in by_entries if lost.phy_offset not in headers)]


def _fill_gaps(store: Store, found: Salvage) -> dict[tuple[QueueKey, int], Entry]:
    """Entries for numbers that are missing between two messages of a queue.

    A tombstone where there is room between the two messages: elsewhere a later rebuild would take it for a new begin of
    the numbering. Else a dead entry, which a broker passes over alone.
    """
    builder = found.derivation.queues()
    entries: dict[tuple[QueueKey, int], Entry] = {}
    for key in found.derivation.queue_keys:
        for first, count in builder.summary(key).gaps:
            before, after = builder.phy_offset_of(key, first - 1), builder.phy_offset_of(key, first + count)
            if before is None or after is None or count > _MOST_GAP_NUMBERS:
                found.unfilled.append((key, first, count))
                continue
            for queue_offset in range(first, first + count):
                piece = _pointed_to(store, found, key, queue_offset)
                piece = piece or _placed(found, LostRecord(key.topic, key.queue_id, queue_offset), before, after)
                if piece is not None:
                    entries[key, queue_offset] = (piece.phy_offset, piece.size_bytes, 0)
                    before = piece.phy_offset
                else:
                    found.unfilled.append((key, queue_offset, 1))
                    if (dead := _dead_entry(store, after)) is not None:
                        entries[key, queue_offset] = dead
    return entries


def _dead_entry(store: Store, following_phy_offset: int) -> Entry | None:
    """An entry that crosses the end of the segment before: unreadable, and only itself is skipped (15.1)."""
    segment = store.log.find(following_phy_offset)
    if segment is None or segment.phy_offset == 0:
        return None
    return segment.phy_offset - 1, DEAD_ENTRY_SIZE_BYTES, 0


def _pointed_to(store: Store, found: Salvage, key: QueueKey, queue_offset: int) -> Piece | None:
    """The tombstone that the queue's own entry points to: a light queue's entry for a record of another topic."""
    files = store.queues.get(key)
    data = files.read(queue_offset * ENTRY.size_bytes, ENTRY.size_bytes) if files is not None else b""
    if len(data) < ENTRY.size_bytes:
        return None
    entry = ENTRY.read(data)
    place = (entry["phy_offset"], entry["size_bytes"])
    pieces = (p for fence in found.fences for p in fence.pieces)
    return next((p for p in pieces if p.tombstone_of is not None and (p.phy_offset, p.size_bytes) == place), None)


def _placed(found: Salvage, lost: LostRecord, before: int, after: int) -> Piece | None:
    """Put one more tombstone into a fence that has room and lies wholly between two offsets."""
    for number, fence in enumerate(found.fences):
        if not before < fence.region.phy_offset <= fence.region.end_phy_offset <= after:
            continue
        free = [p for p in fence.pieces if p.tombstone_of is None]
        if not free:
            continue
        tombstones = [
            replace(p.tombstone_of, phy_offset=p.phy_offset, size_bytes=p.size_bytes)
            for p in fence.pieces
            if p.tombstone_of is not None
        ]
        again = close_region(fence.region, tombstones, [lost], property_crc=found.property_crc)
        if not again.unplaced and again.given_up == fence.given_up:
            found.fences[number] = again
            return next(p for p in again.pieces if p.tombstone_of == lost)
    return None


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
    unplaced = {lost for fence in found.fences for lost in fence.unplaced}
    found.given_up = [fence.given_up for fence in found.fences if fence.given_up is not None]
    found.given_up += [lost for fence in found.fences for lost in fence.region.lost if lost.is_readable]
    end = store.log.max_phy_offset
    # A last segment that is gone leaves no region, but entries that point behind the log.
    missing_end = Region(end, end + _MOST_MISSING_SEGMENTS * store.log.file_size_bytes, end, end)
    tail = lost_by_queue_entries(store, [*found.survey.tail, missing_end])
    behind = {lost for records in tail.values() for lost in records}
    missing = {
        LostRecord(key.topic, key.queue_id, n)
        for key, first, count in found.unfilled
        for n in range(first, first + min(count, _MOST_GAP_NUMBERS))
    }
    found.lost = [*(placed | unplaced | behind | missing)]
    # A region about which no header, no entry and no gap tells anything; where every queue is whole nothing was in it.
    found.unknown = [
        fence.region
        for fence in found.fences
        if fence.region.may_hold_records and not any(p.tombstone_of for p in fence.pieces) and not fence.unplaced
    ]
