"""Copies of one broker's log (a master's, its slaves', backups), recognised and read as one log.

A slave's log is its master's, byte for byte at the same offsets, as far as it goes. So copies are told by records: some
places that both have are looked at, the end of what they have in common among them, where some must be the same. Histories
that have parted once never meet again, so that end would show it; where records differ and the same ones follow behind, one
of the copies has been damaged, and no checksum tells which.

Read as one, each segment comes from the copy that has most of it. The settings of the joint store tell which, so tasks
elsewhere read the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from store_core.codec.record import RecordError, decode_record, identity_of
from store_core.errors import UnreadableError
from store_core.export.naming import Called
from store_core.findings import Finding, finding
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.paths import CONSUMEQUEUE
from store_core.scan.log import ScanOptions, scan_segment
from store_core.storage.digest import crc32c
from store_core.storage.remote_path import is_there, real_path
from store_core.storage.sequence import Segment
from store_core.storage.settings import Differing, Settings
from store_core.storage.store import Store

_SAMPLED_SEGMENTS: Final = 16
_WINDOWS_BYTES: Final = (64 << 10, 1 << 20, 8 << 20)  # one after the other, until a record is found in both
_PROBES: Final = 16
_PROBE_BYTES: Final = 4096
_MOST_DIFFERING: Final = 100  # that are told of a log
_SAMPLE: Final = ScanOptions(check_property_crc=True, properties=False, read_ahead=False, window_size_bytes=256 << 10)
_TO_THE_END: Final = ScanOptions(check_crc=False, properties=False, runs=True)

# Length and checksum of records, by their offsets; no checksum for a blank, or a record with a fault that lies in itself.
Frames = dict[int, tuple[int, int | None]]
_FAULTY: Final = -1
_KEPT_PLACES: Final = 4
_MOST_KEPT_FRAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class Parted:
    """Two stores, by their numbers, whose logs were one up to some record and are no longer."""

    first: int
    second: int
    phy_offset: int


@dataclass(frozen=True, slots=True)
class Copies:
    """Which stores, by their numbers, are copies of one log, the one that goes furthest first. Each is in one group.

    ``differing``: by group, records that are whole in several of its stores and not the same.
    """

    groups: tuple[tuple[int, ...], ...]
    parted: tuple[Parted, ...] = ()
    differing: Mapping[tuple[int, ...], tuple[Differing, ...]] = field(default_factory=dict)


def find_copies(stores: Sequence[Store], names: Sequence[str | None] = ()) -> Copies:
    """Group stores that are copies of each other.

    ``names``: stores that a person gave one name count as copies too where they have no record in common that could tell.
    Raises FailedError where a log cannot be read.
    """
    logs = [Log(store) for store in stores]
    given = list(names) or [None] * len(stores)
    groups: list[list[int]] = []
    pairs: dict[tuple[int, int], _Found] = {}
    for number, log in enumerate(logs):
        pairs |= {(other, number): _compare(logs[other], log) for other in range(number)}
        joined = [number]
        for group in list(groups):
            found = [pairs[min(one, two), max(one, two)] for one in group for two in joined]
            is_claimed = given[number] is not None and given[number] in [given[other] for other in group]
            is_same = is_claimed or any(pairs[other, number].same for other in group)
            if is_same and all(c.parted_at is None for c in found):
                groups.remove(group)
                joined = [*group, *joined]  # two that have nothing in common may both be copies of this one
        groups.append(joined)
    for group in groups:
        if len(group) > 1:
            group.sort(key=lambda number: -logs[number].end_phy_offset)
    groups.sort(key=min)
    parted = [Parted(*pair, c.parted_at) for pair, c in pairs.items() if c.same and c.parted_at is not None]
    told = {
        tuple(group): tuple(sorted(differing)[:_MOST_DIFFERING])
        for group in groups
        if (differing := {each for pair, c in pairs.items() if {*pair} <= {*group} for each in c.differing + c.damaged})
    }
    return Copies(tuple(map(tuple, groups)), tuple(parted), told)


@dataclass(frozen=True, slots=True)
class Taken:
    """A log that is taken once; its settings tell the copies."""

    settings: Settings
    called: Called

    @property
    def roots(self) -> tuple[Path, ...]:
        """Where the log and its copies lie."""
        return (self.settings.root, *self.settings.copies)


def taken_once(stores: Sequence[Store], called: Sequence[Called]) -> tuple[list[Taken], list[str]]:
    """Some stores with copies of one log joined, in the order they were named in; and what a person should be warned of.

    Raises FailedError where a log cannot be read.
    """
    found = find_copies(stores, [each.given for each in called])
    taken = [
        Taken(
            joint_settings([stores[number] for number in group], found.differing.get(group, ()))
            if len(group) > 1
            else stores[group[0]].settings,
            Called.together([called[number] for number in sorted(group)]),
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
    """Copies of one log, the one that goes furthest first, as settings of one store that has what any of them has of the log.

    What follows from the log (queues, index) and what stands beside it is the first one's that has queues: a backup of the
    log alone may go furthest. Raises FailedError where a log cannot be read.
    """
    first: dict[int, Path] = {}
    most: dict[int, tuple[int, Path]] = {}
    for log in map(Log, stores):
        for segment in log.segments.values():
            has = min(max(log.end_phy_offset, segment.phy_offset), segment.end_phy_offset)
            first.setdefault(segment.phy_offset, segment.path.parent)
            if segment.phy_offset not in most or has > most[segment.phy_offset][0]:
                most[segment.phy_offset] = has, segment.path.parent
    main = next((store for store in stores if is_there(store.root / CONSUMEQUEUE)), stores[0])
    return replace(
        main.settings,
        commitlog_paths=tuple(dict.fromkeys(folder for store in stores for folder in store.settings.commitlog_paths)),
        copies=tuple(store.root for store in stores if store is not main),
        choices={offset: folder for offset, (_, folder) in most.items() if folder != first[offset]},
        differing=tuple(differing),
    )


def differences(store: Store, start: int, end: int) -> Iterator[Finding]:
    """What is to be told of a log's copies that do not hold the same record at an offset in [start, end) (L024)."""
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
    """The settings of each copy for itself, from those of the store that has them all."""
    roots = {root: real_path(root) for root in (settings.root, *settings.copies)}
    owners = {
        folder: [root for root, real in roots.items() if real_path(folder).is_relative_to(real)] or list(roots)
        for folder in settings.commitlog_paths
    }
    return [
        replace(
            settings,
            root=root,
            commitlog_paths=tuple(folder for folder, whose in owners.items() if root in whose),
            copies=(),
            choices={},
            differing=(),
        )
        for root in roots
    ]


class Log:
    """One log, looked at here and there. What cannot be read says nothing: another copy may have it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.segments = {segment.phy_offset: segment for segment in store.log.segments}
        self._end: int | None = None
        self._kept: dict[tuple[int, int], Frames] = {}  # of the last places, few frames each

    @property
    def end_phy_offset(self) -> int:
        """Where the last frame ends: a walk over the last segment that has one."""
        if self._end is None:
            ends = (self._end_in(segment) for segment in reversed(self.segments.values()))
            self._end = next((end for end in ends if end), self._store.log.min_phy_offset)
        return self._end

    @end_phy_offset.setter
    def end_phy_offset(self, end: int) -> None:
        self._end = end

    def _end_in(self, segment: Segment) -> int:
        """Where the last frame of a segment ends; 0 if it holds none."""
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
        """Whether nothing but zeros is seen in it, as in one that a broker has made in advance."""
        step = max(segment.size_bytes // _PROBES, _PROBE_BYTES)
        places = range(segment.phy_offset, segment.end_phy_offset, step)
        return not any(any(self._store.log.read(place, _PROBE_BYTES)) for place in places)

    def frame_up_to(self, phy_offset: int) -> int | None:
        """Where the frame begins that ends at an offset inside a segment; None where none is found."""
        segment = self._store.log.find(phy_offset - 1)
        for size in _WINDOWS_BYTES if segment is not None else ():
            start = max(phy_offset - size, segment.phy_offset if segment is not None else 0)
            for at, (length, checksum) in self.frames(start, phy_offset).items():
                if at + length == phy_offset and checksum != _FAULTY:
                    return at
        return None

    def record(self, start: int, end: int) -> bytes:
        """The bytes of a record. Raises UnreadableError."""
        return bytes(self._store.log.read(start, end - start))

    def frames(self, start: int, stop: int) -> Frames:
        """Records and blanks that begin in [start, stop) of one segment, in log order. Not to be changed."""
        kept = self._kept.get((start, stop))
        found = self._frames_in(start, stop) if kept is None else kept
        if kept is None and len(found) <= _MOST_KEPT_FRAMES:  # one log after the other is compared there
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
                for row in (table.messages | (is_blank & (table.code == FrameCode.OK))).nonzero()[0]:
                    whole = table.code[row] == FrameCode.OK
                    checksum = None if is_blank[row] else crc32c(table.record(row)) if whole else _FAULTY
                    found[int(table.phy_offset[row])] = int(table.size_bytes[row]), checksum
        return found


@dataclass(frozen=True, slots=True)
class _Found:
    """``same``: records that are the same in both; the last of them at ``last_same``. ``differing``: where both have a record,
    and not the same one; ``damaged``: likewise, but certainly no part of another history."""

    same: int = 0
    last_same: int = -1
    differing: tuple[Differing, ...] = ()
    damaged: tuple[Differing, ...] = ()

    def __add__(self, other: _Found) -> _Found:
        return _Found(
            self.same + other.same,
            max(self.last_same, other.last_same),
            tuple(sorted({*self.differing, *other.differing})),
        )

    @property
    def parted_at(self) -> int | None:
        """The first difference behind which nothing is the same."""
        return next((at for at, _ in self.differing if at > self.last_same), None)


def _compare(one: Log, two: Log) -> _Found:
    """Two logs at some places that both have; copies if some records are the same, those at the end of it among them."""
    shared = sorted(one.segments.keys() & two.segments.keys())
    if not shared:
        return _Found()
    stops = {at: min(one.segments[at].end_phy_offset, two.segments[at].end_phy_offset) for at in shared}
    head = _compare_from(one, two, shared[0], stops[shared[0]], most_differing=2)
    if head.differing and not head.same:  # logs of other brokers
        return head
    torn = _torn_at_the_end(one, two)
    end = min(one.end_phy_offset, two.end_phy_offset) if torn is None else torn[0]
    shared = [at for at in shared if at < end]
    if not shared:
        return _Found()
    stops = {at: min(stops[at], end) for at in shared}
    last = _compare_up_to(one, two, shared[-1], stops[shared[-1]])
    found = (head if torn is None else _compare_from(one, two, shared[0], stops[shared[0]])) + last
    if last.same:
        for at in _some(shared):
            found += _compare_from(one, two, at, stops[at]) + _compare_up_to(one, two, at, stops[at])
    if torn is not None and min(one.end_phy_offset, two.end_phy_offset) == sum(torn):
        # It is the log that goes on which has it torn; or the properties differ, and nobody knows which are damaged.
        found = replace(found, damaged=(torn,))
    return found if last.same or found.parted_at is not None else _Found()


def _torn_at_the_end(one: Log, two: Log) -> Differing | None:
    """The last record that both have, where one of them has nothing but zeros for its end, or other properties for the same message.
    It says nothing; and a log that has it torn for its last one ends in front of it."""
    end = min(one.end_phy_offset, two.end_phy_offset)
    start = one.frame_up_to(end)
    if start is None or start != two.frame_up_to(end):
        return None
    with suppress(UnreadableError):
        records = [log.record(start, end) for log in (one, two)]
        kept = [record.rstrip(b"\0") for record in records]
        for number, log in enumerate((one, two)):
            mine, other = kept[number], kept[1 - number]
            if len(mine) < len(other) and records[1 - number].startswith(mine):
                if log.end_phy_offset == end:
                    log.end_phy_offset = start
                return start, end - start
        if records[0] != records[1] and _is_one_message(records, start):
            return start, end - start
    return None


def _is_one_message(records: Sequence[bytes], phy_offset: int) -> bool:
    """Whether whole records are the same message, with other properties."""
    try:
        one, two = (decode_record(record, 0, phy_offset) for record in records)
    except RecordError:
        return False
    return identity_of(one) == identity_of(two)


def _some(shared: Sequence[int]) -> Iterator[int]:
    count = min(len(shared), _SAMPLED_SEGMENTS)
    return (shared[i * len(shared) // count] for i in range(count))


def _compare_from(one: Log, two: Log, start: int, stop: int, most_differing: int | None = None) -> _Found:
    return _until_found(one, two, ((start, min(start + size, stop)) for size in _WINDOWS_BYTES), most_differing)


def _compare_up_to(one: Log, two: Log, start: int, stop: int) -> _Found:
    return _until_found(one, two, ((max(stop - size, start), stop) for size in _WINDOWS_BYTES))


def _until_found(one: Log, two: Log, places: Iterator[tuple[int, int]], most_differing: int | None = None) -> _Found:
    found = _Found()
    for start, stop in places:
        found = _difference(one.frames(start, stop), two.frames(start, stop), stop, most_differing)
        if found.same or len(found.differing) > 1:  # a single one may be the damaged one
            break
    return found


def _difference(one: Frames, two: Frames, stop: int, most_differing: int | None = None) -> _Found:
    """Records that are the same, and where two lie over each other and are not; of frames that have nothing in common the first ones,
    if only so many are asked for.

    Where only one of the logs has a whole record, the other is damaged there, which says nothing. Nor does a record that
    damage follows at once: most of a record has no checksum, and the damage may have begun in it. A record with a fault is
    no such damage: its head is where the one in front ends.
    """
    same = {at for at, frame in one.items() & two.items() if frame[1] != _FAULTY}
    reached = 0
    differing: set[Differing] = set()
    for start, end in heapq.merge(*(_whole_but(same, frames, stop) for frames in (one, two))):
        if start < reached:
            differing.add((start, end - start))
            if not same and len(differing) == most_differing:
                break
        reached = max(reached, end)
    records = [at for at in same if one[at][1] is not None]
    return _Found(len(records), max(records, default=-1), tuple(sorted(differing)))


def _whole_but(same: Set[int], frames: Frames, stop: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the other frames that count."""
    for at, (size, checksum) in frames.items():
        if at not in same and checksum != _FAULTY and (at + size in frames or at + size >= stop):
            yield at, at + size
