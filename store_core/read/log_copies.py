"""Recognise copies of one broker's log (a master's, its slaves', backups) and read them as one log.

A slave's log equals its master's, byte for byte at the same offsets, as far as it reaches. So copies are recognised
by records: some places that both logs have are compared, and the end of their common range is one of them. Some
records must be the same there. Histories that have parted never meet again, so the end shows it. Where records differ
and equal ones follow, one of the copies is damaged, and no checksum shows which.

Exports join whole copies (``find_copies``). A recovery also takes ranges from a log that parted later
(``common_history``), and exactly up to the last common record.

In the joint log each segment comes from the copy that has most of it. The settings of the joint store name that copy,
so tasks on other machines read the same bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from store_core.codec.record import Message, RecordError, decode_record, identity_of
from store_core.errors import UnreadableError
from store_core.findings import Finding, finding
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.paths import CONSUMEQUEUE
from store_core.layout.record import MIN_RECORD_SIZE_BYTES
from store_core.scan.log import ScanOptions, scan_segment
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.storage.digest import crc32c
from store_core.storage.remote_path import is_there, real_path
from store_core.storage.sequence import Segment
from store_core.storage.settings import Differing, Settings
from store_core.storage.store import Store

_SAMPLED_SEGMENTS: Final = 16
_WINDOWS_BYTES: Final = (64 << 10, 1 << 20, 8 << 20)  # tried in this order, until a record is found in both
_PROBES: Final = 16
_PROBE_BYTES: Final = 4096
_MOST_DIFFERING: Final = 100  # differences reported of a log
_SAMPLE: Final = ScanOptions(check_property_crc=True, properties=False, window_size_bytes=256 << 10)
_TO_THE_END: Final = ScanOptions(check_crc=False, properties=False, runs=True)

Span = tuple[int, int]  # [start, end) in the log

# Length and checksum of records, by their offsets; None for a blank, _FAULTY for a record with a fault of its own, _MADE for
# a tombstone or filler: rmqctl made it, so it is no part of another history.
Frames = dict[int, tuple[int, int | None]]
_FAULTY: Final = -1
_MADE: Final = -2
_KEPT_PLACES: Final = 4
_MOST_KEPT_FRAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class Parted:
    """Two stores, by their numbers, whose logs are equal before ``phy_offset`` and differ after it."""

    first: int
    second: int
    phy_offset: int


@dataclass(frozen=True, slots=True)
class Copies:
    """Stores, by their numbers, grouped by log; in each group the log that reaches furthest is first.

    Each store is in one group. ``differing``: by group, records that are whole in several of its stores and differ.
    """

    groups: tuple[tuple[int, ...], ...]
    parted: tuple[Parted, ...] = ()
    differing: Mapping[tuple[int, ...], tuple[Differing, ...]] = field(default_factory=dict)


def find_copies(stores: Sequence[Store], names: Sequence[str | None] = ()) -> Copies:
    """Group stores that are copies of each other. Raises FailedError where a log cannot be read.

    ``names``: stores that the operator gave one name also count as copies if they have no common record that could
    prove it.
    """
    logs = [Log(store) for store in stores]
    given = list(names) or [None] * len(stores)
    groups: list[list[int]] = []
    pairs: dict[tuple[int, int], Comparison] = {}
    for number, log in enumerate(logs):
        pairs |= {(other, number): _as_whole(compare(logs[other], log)) for other in range(number)}
        joined = [number]
        for group in list(groups):
            found = [
                pairs[min(member, joined_member), max(member, joined_member)]
                for member in group
                for joined_member in joined
            ]
            is_claimed = given[number] is not None and given[number] in [given[other] for other in group]
            is_same = is_claimed or any(pairs[other, number].same for other in group)
            if is_same and all(comparison.parted_at is None for comparison in found):
                groups.remove(group)
                joined = [*group, *joined]  # two groups without a common record may both be copies of this log
        groups.append(joined)
    for group in groups:
        if len(group) > 1:
            group.sort(key=lambda number: -logs[number].end_phy_offset)
    groups.sort(key=min)
    parted = [
        Parted(*pair, comparison.parted_at)
        for pair, comparison in pairs.items()
        if comparison.same and comparison.parted_at is not None
    ]
    differing_by_group = {
        tuple(group): tuple(sorted(differing)[:_MOST_DIFFERING])
        for group in groups
        if (
            differing := {
                difference
                for pair, comparison in pairs.items()
                if {*pair} <= {*group}
                for difference in comparison.differing + comparison.damaged
            }
        )
    }
    return Copies(tuple(map(tuple, groups)), tuple(parted), differing_by_group)


@dataclass(frozen=True, slots=True)
class Taken:
    """A log that is read once, from the stores with these ``numbers``; its settings name the copies."""

    settings: Settings
    numbers: tuple[int, ...]

    @property
    def roots(self) -> tuple[Path, ...]:
        """The roots of the log and of its copies."""
        return (self.settings.root, *self.settings.copies)


def taken_once(stores: Sequence[Store], names: Sequence[str | None]) -> tuple[list[Taken], list[str]]:
    """Join stores that are copies of one log, in the order in which the operator named them.

    Returns:
        The logs, and warnings for the operator.

    Raises:
        FailedError: a log cannot be read.
    """
    found = find_copies(stores, names)
    taken = [
        Taken(
            joint_settings([stores[number] for number in group], found.differing.get(group, ()))
            if len(group) > 1
            else stores[group[0]].settings,
            tuple(sorted(group)),
        )
        for group in found.groups
    ]
    roots = [store.root for store in stores]
    return taken, [
        f"{roots[parted.first]} and {roots[parted.second]} were copies of one log, which part at {parted.phy_offset}: "
        "each is taken for itself"
        for parted in found.parted
    ]


def joint_settings(stores: Sequence[Store], differing: Sequence[Differing] = ()) -> Settings:
    """Return settings of one store that reads each segment from the copy that has most of it.

    ``stores`` are copies of one log, the one that reaches furthest first. Files other than the log (queues, index)
    are read from the first store that has queues: a backup of the log alone may reach furthest. Raises FailedError
    where a log cannot be read.
    """
    first: dict[int, Path] = {}
    fullest: dict[int, tuple[int, Path]] = {}
    for log in map(Log, stores):
        for segment in log.segments.values():
            held_end = min(max(log.end_phy_offset, segment.phy_offset), segment.end_phy_offset)
            first.setdefault(segment.phy_offset, segment.path.parent)
            if segment.phy_offset not in fullest or held_end > fullest[segment.phy_offset][0]:
                fullest[segment.phy_offset] = held_end, segment.path.parent
    main = next((store for store in stores if is_there(store.root / CONSUMEQUEUE)), stores[0])
    return replace(
        main.settings,
        commitlog_paths=tuple(dict.fromkeys(folder for store in stores for folder in store.settings.commitlog_paths)),
        copies=tuple(store.root for store in stores if store is not main),
        choices={offset: folder for offset, (_, folder) in fullest.items() if folder != first[offset]},
        differing=tuple(differing),
    )


def differences(store: Store, start: int, end: int) -> Iterator[Finding]:
    """Yield L024 for each offset in [start, end) where a log's copies hold different records."""
    for phy_offset, size_bytes in store.settings.differing:
        segment = store.log.find(phy_offset) if start <= phy_offset < end else None
        if segment is not None:
            yield finding(
                "L024",
                "the copies of the log hold different records here; this one is taken",
                phy_offset=phy_offset,
                size_bytes=size_bytes,
                file=store.relative(segment.path),
            )


def apart(settings: Settings) -> list[Settings]:
    """Split the settings of a joint store into the settings of each copy."""
    roots = {root: real_path(root) for root in (settings.root, *settings.copies)}
    owners = {
        folder: [root for root, real in roots.items() if real_path(folder).is_relative_to(real)] or list(roots)
        for folder in settings.commitlog_paths
    }
    return [
        replace(
            settings,
            root=root,
            commitlog_paths=tuple(folder for folder, roots_of_folder in owners.items() if root in roots_of_folder),
            copies=(),
            choices={},
            differing=(),
        )
        for root in roots
    ]


class Log:
    """A log that is sampled at a few places. Unreadable ranges count as empty: another copy may have them."""

    def __init__(self, store: Store, end_phy_offset: int | None = None) -> None:
        """Make no read yet. ``end_phy_offset``: the end of the last frame, if the caller knows it."""
        self._store = store
        self.segments = {segment.phy_offset: segment for segment in store.log.segments}
        self._end = end_phy_offset
        self._kept: dict[tuple[int, int], Frames] = {}  # frames of the last places that were compared

    @property
    def end_phy_offset(self) -> int:
        """The end of the log's last frame, found by a walk over the last segment that has one."""
        if self._end is None:
            ends = (self._end_in(segment) for segment in reversed(self.segments.values()))
            self._end = next((end for end in ends if end), self._store.log.min_phy_offset)
        return self._end

    @end_phy_offset.setter
    def end_phy_offset(self, end: int) -> None:
        self._end = end

    def _end_in(self, segment: Segment) -> int:
        """Return the end of a segment's last frame, or 0 if it has none."""
        end = 0
        with suppress(UnreadableError):
            if self._is_empty(segment):
                return end
            for table in scan_segment(self._store, segment, _TO_THE_END):
                frames = ((table.kind == FrameKind.MESSAGE) | (table.kind == FrameKind.BLANK)).nonzero()[0]
                if len(frames):
                    end = int(table.phy_offset[frames[-1]] + table.size_bytes[frames[-1]])
        return end

    def _is_empty(self, segment: Segment) -> bool:
        """Return True if all sampled places of a segment are zeros, as in a file made in advance."""
        step = max(segment.size_bytes // _PROBES, _PROBE_BYTES)
        places = range(segment.phy_offset, segment.end_phy_offset, step)
        return not any(any(self._store.log.read(place, _PROBE_BYTES)) for place in places)

    def end_of_segment(self, phy_offset: int) -> int:
        """Return where the segment that holds an offset ends; the offset itself if there is none."""
        segment = self._store.log.find(phy_offset)
        return segment.end_phy_offset if segment is not None else phy_offset

    def frame_up_to(self, phy_offset: int) -> int | None:
        """Return the start of the frame that ends at an offset inside a segment, or None."""
        segment = self._store.log.find(phy_offset - 1)
        for size in _WINDOWS_BYTES if segment is not None else ():
            start = max(phy_offset - size, segment.phy_offset if segment is not None else 0)
            for at, (length, checksum) in self.frames(start, phy_offset).items():
                if at + length == phy_offset and checksum != _FAULTY:
                    return at
        return None

    def record(self, start: int, end: int) -> bytes:
        """Return the bytes of a record. Raises UnreadableError."""
        return bytes(self._store.log.read(start, end - start))

    def frames(self, start: int, stop: int) -> Frames:
        """Return the records and blanks that start in [start, stop) of one segment, in log order.

        The caller must not change the result: it is cached.
        """
        kept = self._kept.get((start, stop))
        found = self._frames_in(start, stop) if kept is None else kept
        if kept is None and len(found) <= _MOST_KEPT_FRAMES:  # other logs are compared at the same place
            if len(self._kept) >= _KEPT_PLACES:
                del self._kept[next(iter(self._kept))]
            self._kept[start, stop] = found
        return found

    def _frames_in(self, start: int, stop: int) -> Frames:
        found: Frames = {}
        segment = self._store.log.find(start)
        with suppress(UnreadableError):
            for table in scan_segment(self._store, segment, _SAMPLE, start, stop) if segment is not None else ():
                is_blank = table.kind == FrameKind.BLANK
                made = {*filler_rows(table), *tombstone_rows(table)}
                for row in (table.messages | (is_blank & (table.code == FrameCode.OK))).nonzero()[0]:
                    whole = _MADE if row in made else _FAULTY if table.code[row] != FrameCode.OK else None
                    checksum = None if is_blank[row] else crc32c(table.record(row)) if whole is None else whole
                    found[int(table.phy_offset[row])] = int(table.size_bytes[row]), checksum
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two logs.

    * ``same``: how many records are the same in both; the last of them is at ``last_same``.
    * ``differing``: ranges where both have a record, and not the same one.
    * ``damaged``: likewise, but certainly no part of another history.
    * ``at_the_end``: a record at the end of the range that both have is the same.
    """

    same: int = 0
    last_same: int = -1
    differing: tuple[Differing, ...] = ()
    damaged: tuple[Differing, ...] = ()
    at_the_end: bool = False

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.same + other.same,
            max(self.last_same, other.last_same),
            tuple(sorted({*self.differing, *other.differing})),
            tuple(sorted({*self.damaged, *other.damaged})),
            self.at_the_end or other.at_the_end,
        )

    @property
    def compared(self) -> int:
        """The number of records that both logs have."""
        return self.same + len(self.differing)

    @property
    def parted_at(self) -> int | None:
        """The first difference after the last common record, or None."""
        return next((at for at, _ in self.differing if at > self.last_same), None)


def compare(first: Log, second: Log) -> Comparison:
    """Compare two logs at some places that both have: at their starts, at the common end, and at ends of segments."""
    shared = sorted(first.segments.keys() & second.segments.keys())
    if not shared:
        return Comparison()
    stops = {at: min(first.segments[at].end_phy_offset, second.segments[at].end_phy_offset) for at in shared}
    head = _compare_from(first, second, shared[0], stops[shared[0]], most_differing=2)
    if head.differing and not head.same:  # logs of other brokers
        return head
    common_end = _common_end(first, second)
    torn = _torn_last_record(first, second, common_end)
    end = common_end if torn is None else torn[0]
    shared = [at for at in shared if at < end]
    if not shared:
        return Comparison()
    stops = {at: min(stops[at], end) for at in shared}
    last = Comparison()
    for at in reversed(shared):
        last = _compare_up_to(first, second, at, stops[at])
        if last.same or last.differing:
            break
    found = (head if torn is None else _compare_from(first, second, shared[0], stops[shared[0]])) + last
    if last.same:
        for at in _sampled(shared):
            found += _compare_from(first, second, at, stops[at]) + _compare_up_to(first, second, at, stops[at])
    if torn is not None and min(first.end_phy_offset, second.end_phy_offset) == sum(torn):
        # The longer log has the torn record; or the properties differ, and no checksum shows which are damaged.
        found += Comparison(damaged=(torn,))
    return replace(found, at_the_end=bool(last.same) and last.last_same >= shared[-1])


def _as_whole(found: Comparison) -> Comparison:
    """Return a comparison that proves something about all of both logs, or an empty one."""
    return found if found.at_the_end or found.parted_at is not None else Comparison()


def _common_end(first: Log, second: Log) -> int:
    """Return the end of the log that ends first. The end of the second is looked for only if the first goes on there."""
    if second.frame_up_to(first.end_phy_offset) is not None:
        return first.end_phy_offset
    return min(first.end_phy_offset, second.end_phy_offset)


def common_history(first: Log, second: Log) -> Comparison:
    """Compare two logs. If they have parted, ``last_same`` is the last record of their common history."""
    found = compare(first, second)
    low, high = found.last_same, found.parted_at
    if high is None:
        return found
    for at in sorted(first.segments.keys() & second.segments.keys()):
        if low < at < high:
            stop = min(first.segments[at].end_phy_offset, second.segments[at].end_phy_offset)
            found += _compare_from(first, second, at, stop) + _compare_up_to(first, second, at, stop)
    low, high = found.last_same, found.parted_at
    if high is None or not found.same:
        return found
    while high - low > _WINDOWS_BYTES[-1]:
        middle = (low + high) // 2
        stop = min(first.end_of_segment(middle), high)
        part = _compare_from(first, second, middle, stop)
        low = max(low, part.last_same)
        if not part.same:
            high = min([middle, *(at for at, _ in part.differing)])
    for start, stop in pairwise([low, *(at for at in sorted(first.segments) if low < at < high), high]):
        found += _difference(first.frames(start, stop), second.frames(start, stop), stop)
    return found


def _torn_last_record(first: Log, second: Log, end: int) -> Differing | None:
    """Return the last record that both logs have, if one log has it torn or with other properties.

    Torn means zeros instead of the record's end. Such a record proves nothing about the logs; a log whose last record
    is torn is taken to end before it.
    """
    start = first.frame_up_to(end)
    if start is None or start != second.frame_up_to(end):
        return None
    with suppress(UnreadableError):
        records = [log.record(start, end) for log in (first, second)]
        for number, log in enumerate((first, second)):
            if is_torn(records[number], records[1 - number]):
                if log.end_phy_offset == end:
                    log.end_phy_offset = start
                return start, end - start
        if records[0] != records[1] and same_message(records[0], records[1], start) is not None:
            return start, end - start
    return None


def is_torn(record: bytes, other: bytes) -> bool:
    """Return True if a record equals another one up to a byte after its head, then is zeros.

    A lost page that begins in a record's topic or properties leaves such a record, which no checksum shows.
    """
    whole = record.rstrip(b"\0")
    return MIN_RECORD_SIZE_BYTES <= len(whole) < len(other.rstrip(b"\0")) and other.startswith(whole)


def same_message(record: bytes, other: bytes, phy_offset: int) -> tuple[Message, Message] | None:
    """Return two records decoded if they are the same message, perhaps with different properties, else None."""
    try:
        first, second = (decode_record(data, 0, phy_offset) for data in (record, other))
    except RecordError:
        return None
    return (first, second) if identity_of(first) == identity_of(second) else None


def _sampled(shared: Sequence[int]) -> Iterator[int]:
    count = min(len(shared), _SAMPLED_SEGMENTS)
    return (shared[i * len(shared) // count] for i in range(count))


def _compare_from(first: Log, second: Log, start: int, stop: int, most_differing: int | None = None) -> Comparison:
    return _until_found(first, second, ((start, min(start + size, stop)) for size in _WINDOWS_BYTES), most_differing)


def _compare_up_to(first: Log, second: Log, start: int, stop: int) -> Comparison:
    return _until_found(first, second, ((max(stop - size, start), stop) for size in _WINDOWS_BYTES))


def _until_found(
    first: Log, second: Log, places: Iterator[tuple[int, int]], most_differing: int | None = None
) -> Comparison:
    found = Comparison()
    for start, stop in places:
        found = _difference(first.frames(start, stop), second.frames(start, stop), stop, most_differing)
        if found.same or len(found.differing) > 1:  # a single difference may be damage
            break
    return found


def _difference(first: Frames, second: Frames, stop: int, most_differing: int | None = None) -> Comparison:
    """Compare the frames of two logs: count equal records and list ranges where frames overlap and differ.

    These say nothing and are left out:

    * a whole record that only one of the logs has: the other log is damaged there;
    * a record that damage follows at once: most of a record has no checksum, and the damage may have started inside
      it.

    A record with a fault of its own is no such damage: its head is where the previous frame ends. A record of rmqctl
    that overlaps another one counts as damage. ``most_differing``: if no record is the same, list only the first
    differences, up to this number.
    """
    same = {at for at, frame in first.items() & second.items() if frame[1] != _FAULTY}
    reached, reached_is_made = 0, False
    differing: set[Differing] = set()
    damaged: set[Differing] = set()
    for start, end, is_made in heapq.merge(*(_others_whole(same, frames, stop) for frames in (first, second))):
        if start < reached:
            (damaged if is_made or reached_is_made else differing).add((start, end - start))
            if not same and len(differing) == most_differing:
                break
        if end > reached:
            reached, reached_is_made = end, is_made
    records = [at for at in same if first[at][1] not in (None, _MADE)]
    return Comparison(
        len(records), max(records, default=-1), tuple(sorted(differing)), tuple(sorted(damaged - differing))
    )


def _others_whole(same: Set[int], frames: Frames, stop: int) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each whole frame that is not in ``same``, and whether rmqctl made it."""
    for at, (size, checksum) in frames.items():
        if at not in same and checksum != _FAULTY and (at + size in frames or at + size >= stop):
            yield at, at + size, checksum == _MADE


def parts_outside(span: Span, given: Iterable[Span]) -> list[Span]:
    """Return the parts of a span that lie outside the ``given`` ranges, which are in order."""
    parts, start = [], span[0]
    for low, high in given:
        if high <= start or low >= span[1]:
            continue
        if low > start:
            parts.append((start, low))
        start = high
    return [*parts, (start, span[1])] if start < span[1] else parts
