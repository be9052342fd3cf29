"""Fill queue offsets that no message has with tombstones in the log or dead entries (store behaviour 15.1).

A dead entry points to the last byte before a segment, with a size that reaches into it: it cannot be read, and a broker
skips it alone. It breaks the ascending order of a queue, which brokers 5.x rely on once the entry's segment is the first
one, so it must not be there, nor at a queue's start or end.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice, pairwise
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import numpy as np

from store_core.check.entries import dead_entries
from store_core.codec.record import body_crc_ok
from store_core.derive.dispatch import light_queues
from store_core.derive.queues import Entry, QueueBuilder
from store_core.layout import paths, queue
from store_core.layout.queue import DEAD_ENTRY_SIZE_BYTES
from store_core.layout.record import MIN_RECORD_SIZE_BYTES
from store_core.read.records import read_message
from store_core.recovery.damaged_region import ClosedRegion, close_region
from store_core.recovery.derived_files import Derivation
from store_core.recovery.log_edits import EditedLog
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import FEWEST_ROWS, LostTable
from store_core.recovery.skipped_offsets import Room, Runs, with_numbers
from store_core.recovery.tombstones import Piece, TombstoneRun, smallest_tombstone_size_bytes
from store_core.scan.log import Progress
from store_core.scan.walk_progress import WalkProgress, behind
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

MOST_GAP_NUMBERS: Final = 1 << 20  # a larger gap, for which regions had no room, comes from a wrong number
_ENTRIES_AT_ONCE: Final = 1 << 16


class _KeepPlan(Protocol):
    @property
    def closed_regions(self) -> list[ClosedRegion]: ...
    @property
    def edited(self) -> EditedLog: ...
    @property
    def derivation(self) -> Derivation: ...
    @property
    def unfilled(self) -> list[tuple[QueueKey, int, int]]: ...

    dead_messages: int

    @property
    def property_crc(self) -> bool: ...
    @property
    def skips(self) -> bool: ...


class GapEntries:
    """Queue entries for numbers that no message has, as runs of equal entries."""

    def __init__(self) -> None:
        self._runs: dict[QueueKey, list[_Run]] = {}
        self._is_sorted = True

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, key: QueueKey, first: int, stop: int, entry: Entry) -> None:
        """Add an entry for numbers [first, stop) of a queue, none of which has one yet."""
        runs = self._runs.setdefault(key, [])
        if runs and runs[-1].stop == first and runs[-1].entry == entry:
            runs[-1] = _Run(runs[-1].first, stop, entry)
        else:
            runs.append(_Run(first, stop, entry))
            self._is_sorted = False

    def of(self, key: QueueKey, queue_offset: int) -> Entry | None:
        """Return the entry for a number; None without one."""
        if not self._is_sorted:
            for runs in self._runs.values():
                runs.sort()
            self._is_sorted = True
        runs = self._runs.get(key, [])
        at = bisect_right(runs, queue_offset, key=attrgetter("first")) - 1
        return runs[at].entry if at >= 0 and queue_offset < runs[at].stop else None


class _Run(NamedTuple):
    first: int
    stop: int
    entry: Entry


@dataclass(slots=True)
class _Gap:
    """Numbers of a queue that wait for tombstones, all between two offsets of the log."""

    key: QueueKey
    before: int
    after: int
    numbers: list[range] = field(default_factory=list)
    is_front: bool = False  # no message of the queue comes before it
    must_be_walked: bool = False  # only a walk of the log finds its tombstones

    def __len__(self) -> int:
        return sum(map(len, self.numbers))

    def wait(self, first: int, stop: int) -> None:
        """Add numbers [first, stop), which follow the numbers before."""
        if self.numbers and self.numbers[-1].stop == first:
            first = self.numbers.pop().start
        self.numbers.append(range(first, stop))

    def runs(self) -> Runs:
        """Return the waiting numbers."""
        firsts = np.array([numbers.start for numbers in self.numbers], np.int64)
        return Runs(firsts, np.array([len(numbers) for numbers in self.numbers], np.int64))

    def forget_first(self, count: int) -> None:
        """Remove the first ``count`` numbers."""
        while count and count >= len(self.numbers[0]):
            count -= len(self.numbers.pop(0))
        if count:
            self.numbers[0] = self.numbers[0][count:]


def fill_gaps(store: Store, found: _KeepPlan, table: LostTable, walks: WalkProgress) -> tuple[GapEntries, bool]:
    """Return entries for numbers that are missing between two messages of a queue, or before its first.

    Dead entries of an earlier run stay as they are. Other numbers get a tombstone if there is room between the two messages: at
    another place a later rebuild would take it for a new start of the numbering. Without room, or if numbers are to be skipped,
    they get a dead entry. The second value is True if the log got tombstones that a walk must find.
    """
    filling = _Filling(store, found)
    for key in found.derivation.queue_keys:
        filling.look_at(key)
    filling.place(table, walks)
    return filling.entries, any(gap.must_be_walked for gap in filling.waiting)


class _Filling:
    """The tombstones and entries chosen for missing numbers, queue by queue."""

    def __init__(self, store: Store, found: _KeepPlan) -> None:
        self.entries = GapEntries()
        self.waiting: list[_Gap] = []
        self._store = store
        self._found = found
        self._log = found.edited.log
        self._builder = found.derivation.queues()
        self._fronts = _Fronts(self._log, found.closed_regions)
        lost_bytes = sum(closed_region.region.size_bytes for closed_region in found.closed_regions)
        self._most_numbers = max(MOST_GAP_NUMBERS, lost_bytes // MIN_RECORD_SIZE_BYTES)
        self._pieces = {
            (piece.phy_offset, piece.size_bytes): piece
            for closed_region in found.closed_regions
            for piece in closed_region.pieces
            if isinstance(piece, Piece) and piece.tombstone_of is not None
        }

    def look_at(self, key: QueueKey) -> None:
        if (front := self._fronts.of(self._builder, key)) is not None:
            self.waiting.append(front)
        for first, count in self._builder.summary(key).gaps:
            before = self._builder.phy_offset_of(key, first - 1)
            after = self._builder.phy_offset_of(key, first + count)
            if before is None or after is None or count > self._most_numbers:
                self._found.unfilled.append((key, first, min(count, MOST_GAP_NUMBERS)))
                continue
            gap = _Gap(key, before, after)
            self.waiting.append(gap)
            dead = _dead_entry(self._log, after)
            is_skipped = self._found.skips and dead is not None and dead[0] >= self._store.log.min_phy_offset
            for run_first, run_stop, present in _dead_runs(self._store, key, first, first + count):
                if present is not None:  # an earlier run wrote it and reported its message as lost
                    self.entries.add(key, run_first, run_stop, present)
                elif key.topic.startswith(paths.LMQ_PREFIX):  # its entries are for records of other topics
                    gap = self._look_at_light(gap, range(run_first, run_stop), dead if is_skipped else None)
                elif is_skipped:
                    self._leave_dead(key, run_first, run_stop, dead)
                else:
                    gap.wait(run_first, run_stop)

    def _look_at_light(self, gap: _Gap, numbers: range, dead: Entry | None) -> _Gap:
        """Add a light queue's entries that lead to a record and return the gap after the last of them.

        The other numbers get the ``dead`` entry if it is given; else they wait for tombstones.
        """
        key, after = gap.key, gap.after
        for queue_offset in numbers:
            present = queue_entry_at(self._store, key, queue_offset)
            if present is not None and (piece := self._pieces.get(present[:2])) is not None:
                entry, gap.after = (piece.phy_offset, piece.size_bytes, 0), piece.phy_offset
            elif (
                present is not None
                and gap.before < present[0] < after
                and _leads_to_record(self._log, key, queue_offset, present)
            ):
                entry, gap.after = present, present[0]
            else:
                if dead is not None:
                    self._leave_dead(key, queue_offset, queue_offset + 1, dead)
                else:
                    gap.wait(queue_offset, queue_offset + 1)
                continue
            self.entries.add(key, queue_offset, queue_offset + 1, entry)
            gap = _Gap(key, entry[0], after)
            self.waiting.append(gap)
        return gap

    def _leave_dead(self, key: QueueKey, first: int, stop: int, dead: Entry | None) -> None:
        if dead is not None:
            self.entries.add(key, first, stop, dead)
            self._found.dead_messages += stop - first
        unfilled = self._found.unfilled
        if unfilled and unfilled[-1][0] == key and sum(unfilled[-1][1:]) == first:
            first = unfilled.pop()[1]
        unfilled.append((key, first, stop - first))

    def place(self, table: LostTable, walks: WalkProgress) -> None:
        """Put tombstones where there is room, and dead entries elsewhere."""
        _place(self._found, self.waiting, table, walks, self.entries)
        for gap in self.waiting:
            dead = _dead_entry(self._log, gap.after) if gap.numbers and not gap.is_front else None
            for numbers in gap.numbers:
                self._leave_dead(gap.key, numbers.start, numbers.stop, dead)


def _dead_runs(store: Store, key: QueueKey, first: int, stop: int) -> Iterator[tuple[int, int, Entry | None]]:
    """Yield runs of numbers [first, stop) of a queue, each with the dead entry stored there, or None."""
    found, size = store.queues.get(key), queue.ENTRY.size_bytes
    files = found.segments if found is not None else ()
    for at in range(first, stop, _ENTRIES_AT_ONCE):
        entries = np.zeros(min(_ENTRIES_AT_ONCE, stop - at), queue.ENTRY.dtype)
        end = at + len(entries)
        for file in islice(files, max(bisect_right(files, at * size, key=attrgetter("phy_offset")) - 1, 0), None):
            low = max(at, -(-file.phy_offset // size))
            if low >= end:
                break
            data = store.cache.read(file.path, low * size - file.phy_offset, (end - low) * size)
            read = np.frombuffer(data, queue.ENTRY.dtype, len(data) // size)
            entries[low - at : low - at + len(read)] = read
        is_dead = dead_entries(entries, store.log.file_size_bytes)
        ends = np.flatnonzero((is_dead[1:] != is_dead[:-1]) | (is_dead[1:] & (entries[1:] != entries[:-1]))) + 1
        for low, high in pairwise((0, *ends.tolist(), len(entries))):
            phy_offset, size_bytes, tags_code = entries[low].item()
            yield at + low, at + high, (phy_offset, size_bytes, tags_code) if is_dead[low] else None


class _Fronts:
    """The numbers before the queues' first messages, if the log starts at 0 and holes had room for them."""

    def __init__(self, log: SegmentSequence, closed_regions: list[ClosedRegion]) -> None:
        closed = closed_regions if log.min_phy_offset == 0 else []
        self._ends = [closed_region.region.end_phy_offset for closed_region in closed]
        self._room = [0, *accumulate(closed_region.region.size_bytes for closed_region in closed)]

    def of(self, builder: QueueBuilder, key: QueueKey) -> _Gap | None:
        count = builder.summary(key).first_queue_offset
        after = builder.phy_offset_of(key, count) if count else None
        if after is None or key.topic.startswith(paths.LMQ_PREFIX):
            return None
        room = self._room[bisect_right(self._ends, after)]
        if count > min(room // MIN_RECORD_SIZE_BYTES, MOST_GAP_NUMBERS):
            return None
        return _Gap(key, -1, after, [range(count)], is_front=True)


def _dead_entry(log: SegmentSequence, following_phy_offset: int) -> Entry | None:
    """Return an entry that crosses the end of the segment before: unreadable, and a broker skips only it (15.1)."""
    segment = log.find(following_phy_offset)
    if segment is None or segment.phy_offset == 0:
        return None
    return segment.phy_offset - 1, DEAD_ENTRY_SIZE_BYTES, 0


def _leads_to_record(log: SegmentSequence, key: QueueKey, queue_offset: int, entry: Entry) -> bool:
    """Return True if a light queue's entry points to a whole record whose list does not contradict it.

    If a damaged list lacks the queue, only the entry puts the record there.
    """
    if not key.topic.startswith(paths.LMQ_PREFIX):
        return False
    message = read_message(log, entry[0], entry[1])
    if message is None or (message.own_phy_offset, message.size_bytes) != entry[:2] or not body_crc_ok(message):
        return False
    return dict(light_queues(message.properties)).get(key.topic, queue_offset) == queue_offset


def _place(found: _KeepPlan, gaps: list[_Gap], table: LostTable, walks: WalkProgress, entries: GapEntries) -> None:
    """Put more tombstones into closed regions with room between a gap's two offsets; ``entries`` receives their places."""
    waiting = [place for place, gap in enumerate(gaps) if gap.numbers]
    on_bytes, done = (
        walks.piece(sum(closed_region.region.size_bytes for closed_region in found.closed_regions))
        if waiting
        else None,
        0,
    )
    waiting.sort(key=lambda place: gaps[place].before, reverse=True)
    reaching: list[int] = []  # indices of the gaps that reach into the region, in order
    for number, closed_region in enumerate(found.closed_regions if waiting else ()):
        while waiting and gaps[waiting[-1]].before < closed_region.end_phy_offset:
            insort(reaching, waiting.pop())
        reaching = [place for place in reaching if gaps[place].numbers and closed_region.phy_offset < gaps[place].after]
        if reaching and closed_region.pieces:  # without pieces it is left open
            _fill(found, number, [gaps[place] for place in reaching], table, entries, behind(on_bytes, done))
        done += closed_region.region.size_bytes


def _fill(
    found: _KeepPlan,
    number: int,
    gaps: list[_Gap],
    table: LostTable,
    entries: GapEntries,
    on_progress: Progress | None,
) -> None:
    """Close a region again with tombstones for the numbers that wait for it.

    They take free room; if that is not enough for all, other tombstones are made as small as possible. Numbers of one gap rise
    with their places, because all need the same room and take the first there is. Many numbers become rows.
    """
    closed_region = found.closed_regions[number]
    close = partial(close_region, closed_region.region, property_crc=found.property_crc)
    runs = [piece.lost for piece in closed_region.pieces if isinstance(piece, TombstoneRun)]
    placed, taken = _placed_tombstones(closed_region), _taken(Room(closed_region), gaps)
    is_tight = False
    if _count(taken) < sum(map(len, gaps)):
        small = _placed_tombstones(closed_region, is_tight=True)
        taken_too = _taken(Room(close([*small, *runs])), gaps)
        if is_tight := _count(taken_too) > _count(taken):
            placed, taken = small, taken_too
    if not _count(taken):
        return
    wanted: set[LostRecord] = set()
    if runs or _count(taken) >= FEWEST_ROWS:
        numbered = ((gap.key, gap.runs(), places) for gap, places in zip(gaps, taken, strict=True))
        again = close([*placed, *with_numbers(closed_region, table, numbered)], on_progress=on_progress)
    else:
        wanted = {
            LostRecord(gap.key.topic, gap.key.queue_id, queue_offset, place, places.step)
            for gap, places in zip(gaps, taken, strict=True)
            for queue_offset, place in zip(
                *(runs.between(0, len(places)).tolist() for runs in (gap.runs(), places)), strict=True
            )
        }
        again = close([*placed, *wanted], on_progress=on_progress)
    if again.given_up != closed_region.given_up or again.unplaced:
        return
    again.unplaced, again.skipped = closed_region.unplaced, closed_region.skipped
    found.closed_regions[number] = again
    for at, piece in enumerate(again.pieces):
        if not isinstance(piece, Piece) or (lost := piece.tombstone_of) is None:
            continue
        if lost in wanted:
            entry = piece.phy_offset, piece.size_bytes, 0
            entries.add(QueueKey(lost.topic, lost.queue_id), lost.queue_offset, lost.queue_offset + 1, entry)
            unplaced = LostRecord(lost.topic, lost.queue_id, lost.queue_offset)  # its former place is unknown
            again.pieces[at] = replace(piece, tombstone_of=unplaced)
        elif lost in placed:
            again.pieces[at] = replace(piece, tombstone_of=placed[lost])
    for gap, places in zip(gaps, taken, strict=True):
        if count := len(places):
            gap.must_be_walked |= gap.is_front or is_tight or not wanted
            gap.is_front = False  # a tombstone of the queue comes before the remaining numbers now
            gap.before = int(places.between(count - 1, count)[0])
            gap.forget_first(count)


def _taken(room: Room, gaps: list[_Gap]) -> list[Runs]:
    return [room.take(gap.key, len(gap), (gap.before, gap.after)) for gap in gaps]


def _count(taken: list[Runs]) -> int:
    return sum(map(len, taken))


def _placed_tombstones(closed_region: ClosedRegion, *, is_tight: bool = False) -> dict[LostRecord, LostRecord]:
    """Return lost records at their tombstones' places, except runs, with the original record of each.

    ``is_tight``: in the least room, if that leaves room for another frame.
    """
    found = {}
    for piece in closed_region.pieces:
        lost = piece.tombstone_of if isinstance(piece, Piece) else None
        if lost is None or lost == closed_region.given_up:
            continue
        size = piece.size_bytes
        if is_tight:
            least = smallest_tombstone_size_bytes(lost, property_crc=closed_region.property_crc)
            size = least if size - least >= closed_region.min_record_size_bytes else size
        found[replace(lost, phy_offset=piece.phy_offset, size_bytes=size)] = lost
    return found
