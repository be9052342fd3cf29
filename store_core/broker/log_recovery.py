"""Recover the log as a broker does: find the scan's start, scan, dispatch and cut; then catch up as 4.x does at start.

Behaviour 3.2 to 3.5, 6.1, 1.7.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.dispatch import QueueDispatcher
from store_core.broker.record_check import HEAP_DEPENDENT_BYTES, Checked, CheckRules, Verdict, check_at
from store_core.broker.versions import CleanStart, CrashStart, QueueCut
from store_core.broker.walk import SegmentWalk, WalkRules, is_plain_row
from store_core.derive.dispatch import DispatchError
from store_core.layout import record
from store_core.scan.frames import select

if TYPE_CHECKING:
    from store_core.broker.load import CheckpointTimes, Loaded
    from store_core.broker.versions import Behaviour
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment
    from store_core.storage.store import Store


Ints = NDArray[np.int64]
Progress = Callable[[int], None]
TableSink = Callable[["FrameTable"], None]

_SEGMENTS_CHECKED: Final = 3  # by a clean start of old releases
_NO_QUEUE_OFFSET: Final = "enableAcceleratedRecovery is set, and the checkpoint has no queue offset (RuntimeException)"


@dataclass(slots=True)
class LogRecovery:
    """The log after recovery. ``refusal``: why loading or starting does not end, "" if it does.

    ``written``: by file start, how many bytes a broker takes for written in each file that contains the end. If a foreign file
    overlaps a segment, both contain it, and the bytes count from each file's start.
    """

    first_file_scanned: str | None = None
    end_phy_offset: int = 0
    segments: list[Segment] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    stopped: Checked | None = None
    refusal: str = ""
    notes: list[str] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)

    @property
    def min_phy_offset(self) -> int:
        """Start of the first file, -1 without files."""
        return self.segments[0].phy_offset if self.segments else -1

    @property
    def max_phy_offset(self) -> int:
        """The offset of the next record: the end that the scan found, at most the end of the last file."""
        return self.readable_end(self.segments[-1]) if self.segments else 0

    def readable_end(self, segment: Segment) -> int:
        """Return the offset at which a file's written part ends."""
        written = self.written.get(segment.phy_offset)
        return segment.end_phy_offset if written is None else segment.phy_offset + written


@dataclass(frozen=True, slots=True)
class LogRules:
    """The rules of log recovery that depend on release and configuration."""

    behaviour: Behaviour
    check: CheckRules
    aborted: bool
    index_safe: bool
    is_master: bool
    catches_up: bool  # start dispatches from the queues' end
    index_keys: bool
    bounds_own_offset: bool = False  # a record whose own offset is outside its file ends a scan after a crash
    is_accelerated: bool = False  # that scan starts at the checkpoint's queue offset, not at a file's start

    @classmethod
    def of(cls, store: Store, behaviour: Behaviour) -> LogRules:
        settings = store.settings
        return cls(
            behaviour,
            CheckRules.of(
                behaviour,
                check_crc=settings.flag("checkCRCOnRecover", True),
                verify_property_crc=settings.flag("forceVerifyPropCRC"),
            ),
            store.aborted,
            settings.flag("messageIndexEnable", True) and settings.flag("messageIndexSafe"),
            settings.value("brokerId", "0").strip() == "0",
            behaviour.dispatches_from_queue_end or settings.flag("recheckReputOffsetFromCq"),
            settings.flag("messageIndexEnable", True),
            store.aborted and behaviour.bounds_own_offset and settings.flag("checkCommitLogOffsetOnRecover"),
            store.aborted and behaviour.scans_from_queue_offset and settings.flag("enableAcceleratedRecovery"),
        )

    def walk(self, *, check_crc: bool) -> WalkRules:
        check = self.check
        if not check_crc:
            check = replace(check, check_crc=False, verify_property_crc=False)
        return WalkRules(check, self.index_keys, self.index_keys and self.behaviour.index_tags)


def recover_log(
    store: Store,
    loaded: Loaded,
    rules: LogRules,
    dispatcher: QueueDispatcher,
    *,
    on_table: TableSink | None = None,
    on_progress: Progress | None = None,
) -> LogRecovery:
    """Scan, dispatch and cut. ``on_table`` gets every accepted table, ``on_progress`` the bytes scanned so far.

    A table may have one row for adjacent plain records that are not dispatched (``SegmentWalk``).
    """
    result = LogRecovery(segments=list(loaded.segments))
    queues = [*dispatcher.queues.values(), *dispatcher.batch_queues.values()]
    if rules.is_accelerated and loaded.checkpoint.logics_phy_offset <= 0 < loaded.checkpoint.physic_msg_timestamp_ms:
        result.refusal = _NO_QUEUE_OFFSET
        return result
    if not loaded.segments:
        if rules.aborted or rules.behaviour.empty_log_drops_queues:
            for queue in queues:
                queue.drop_all()
        return result
    queue_end = max((queue.end_phy_offset for queue in queues), default=-1)
    start = first_segment(store, loaded.segments, loaded.checkpoint, rules, queue_end)
    first = loaded.segments[start]
    result.first_file_scanned = first.name
    begin = max(loaded.checkpoint.logics_phy_offset, 0) if rules.is_accelerated else first.phy_offset
    if begin > first.end_phy_offset:
        result.refusal = (
            f"the scan is to start at the checkpoint's queue offset {begin}, beyond {result.first_file_scanned}"
        )
        return result
    try:
        _scan(store, loaded.segments[start:], begin, rules, dispatcher, queue_end, result, on_table, on_progress)
    except DispatchError as error:
        result.refusal = f"{error}: loading fails at it"
    dispatcher.settle()
    if not result.refusal:
        _cut_queues(dispatcher, rules, queue_end, result.end_phy_offset)
        _cut_log(result)
    return result


# -- where the scan starts (3.2 to 3.4) -----------------------------------------------------------------------------


def first_segment(
    store: Store, segments: list[Segment], checkpoint: CheckpointTimes, rules: LogRules, queue_end: int
) -> int:
    """Return the index of the segment at which the scan starts."""
    behaviour = rules.behaviour
    if not rules.aborted and behaviour.clean_start is CleanStart.THIRD_LAST:
        return max(len(segments) - _SEGMENTS_CHECKED, 0)
    limit = behaviour.newest_segments_scanned
    lowest = max(len(segments) - limit, 0) if limit else 0
    for place in range(len(segments) - 1, lowest, -1):
        if _matches(store, segments[place], checkpoint, rules, queue_end):
            return place
    return lowest


def _matches(store: Store, segment: Segment, checkpoint: CheckpointTimes, rules: LogRules, queue_end: int) -> bool:
    behaviour = rules.behaviour
    if not rules.aborted and behaviour.clean_start is CleanStart.QUEUE_END:
        return segment.phy_offset <= queue_end
    if behaviour.crash_start is CrashStart.HEADER:
        stored = _first_store_time(store, segment, rules)
        limit = checkpoint.min_timestamp_ms
        if rules.index_safe:
            limit = min(limit, checkpoint.index_msg_timestamp_ms)
        return stored != 0 and stored <= limit
    first = check_at(store.log.holding(segment).read, segment.phy_offset, segment.size_bytes, rules.check).row
    if first is None or first.store_timestamp_ms == 0:
        return False
    if rules.index_safe and first.store_timestamp_ms > checkpoint.index_msg_timestamp_ms:
        return False
    if not rules.aborted:
        return first.own_phy_offset <= queue_end
    if behaviour.crash_start is CrashStart.WHOLE_RECORD:
        return first.store_timestamp_ms <= checkpoint.min_timestamp_ms
    if checkpoint.logics_phy_offset > 0:
        return first.own_phy_offset <= checkpoint.logics_phy_offset
    return first.store_timestamp_ms <= checkpoint.logics_msg_timestamp_ms


def _first_store_time(store: Store, segment: Segment, rules: LogRules) -> int:
    """Return the store time of the first record by its header alone; 0 if its magic is not a record's."""
    v6 = record.FLAG_BORN_HOST_V6
    data = store.log.holding(segment).read(segment.phy_offset, record.store_time_at(v6) + record.STORE_TIME.size_bytes)
    if len(data) < record.store_time_at(v6) + record.STORE_TIME.size_bytes:
        return 0
    head = record.HEAD.read(data)
    if head["magic"] != record.MAGIC_V1 and not (head["magic"] == record.MAGIC_V2 and rules.check.reads_v2):
        return 0
    at = record.store_time_at(head["sys_flag"] if rules.check.reads_v6_hosts else 0)
    stored: int = record.STORE_TIME.read(data, at)["store_timestamp_ms"]
    return stored


# -- the scan (3.2, 3.3) --------------------------------------------------------------------------------------------


def _scan(
    store: Store,
    segments: list[Segment],
    begin: int,
    rules: LogRules,
    dispatcher: QueueDispatcher,
    queue_end: int,
    result: LogRecovery,
    on_table: TableSink | None,
    on_progress: Progress | None,
) -> None:
    done = 0
    plain_to = _not_dispatched(rules, queue_end)
    walking = rules.walk(check_crc=True)
    for segment in segments:
        at, end, ahead = max(begin, segment.phy_offset), segment.end_phy_offset, 0
        while True:
            walk = SegmentWalk(store.log, segment, walking, at, end, plain_to=plain_to)
            outside = None
            for accepted in walk:
                outside = _outside_of_file(accepted, segment) if rules.bounds_own_offset else None
                table = accepted if outside is None else select(accepted, accepted.phy_offset < outside)
                if on_table is not None:
                    on_table(table)
                wanted = _to_dispatch(table, rules, queue_end)
                if wanted is not None:
                    dispatcher.dispatch(wanted, knows_delays=not rules.behaviour.late_delay_table)
                if on_progress is not None:
                    on_progress(done + accepted.end_phy_offset - segment.phy_offset)
                if outside is not None:
                    break
            if outside is not None:
                walk.end, walk.stopped = outside, Checked(Verdict.FAILED)
            if not _continues_after_mismatch(walk.stopped, rules):
                break
            # The broker adds the claimed size to its count, but reads on where the parts end; it dispatches no topic at offset 0.
            dispatcher.dispatch_nameless(walk.stopped.size_bytes)
            at = walk.end + walk.stopped.consumed_bytes
            ahead += walk.stopped.size_bytes - walk.stopped.consumed_bytes
        done += segment.size_bytes
        result.end_phy_offset, result.stopped = walk.end + ahead, walk.stopped
        if walk.stopped.verdict is not Verdict.BLANK:
            break
    assert result.stopped is not None
    _judge(result, result.stopped)


def _outside_of_file(table: FrameTable, segment: Segment) -> int | None:
    """Return the position of the first record whose own offset is outside its file, or None."""
    is_outside = (table.own_phy_offset < segment.phy_offset) | (table.own_phy_offset > segment.end_phy_offset)
    return int(table.phy_offset[is_outside.argmax()]) if is_outside.any() else None


def _continues_after_mismatch(stopped: Checked, rules: LogRules) -> bool:
    return (
        stopped.verdict is Verdict.MISMATCH
        and stopped.size_bytes > 0
        and rules.aborted
        and rules.behaviour.mismatch_is_record
    )


def _not_dispatched(rules: LogRules, queue_end: int) -> int:
    """Return the offset before which a record at its own offset is not dispatched again."""
    if rules.aborted:
        return 0
    return queue_end if rules.behaviour.clean_start_dispatches else sys.maxsize


def _to_dispatch(table: FrameTable, rules: LogRules, queue_end: int) -> FrameTable | None:
    """Return the rows to dispatch again, chosen by the records' own offsets, or None."""
    if is_plain_row(table):  # already dispatched, or not to be
        return None
    if rules.aborted:
        return table
    if not rules.behaviour.clean_start_dispatches:
        return None
    is_after = table.own_phy_offset > queue_end
    if is_after.all():
        return table
    return select(table, is_after) if is_after.any() else None


def _judge(result: LogRecovery, stopped: Checked) -> None:
    where = result.end_phy_offset
    if stopped.verdict is Verdict.OUT_OF_MEMORY:
        result.refusal = (
            f"the record at {where} claims {stopped.size_bytes} bytes: recovery asks for an array of that size,"
            " which exceeds the VM limit (OutOfMemoryError)"
        )
    elif stopped.scratch_bytes >= HEAP_DEPENDENT_BYTES:
        result.notes.append(
            f"the record at {where} claims {stopped.scratch_bytes} bytes: with a heap too small for an array of that"
            " size the broker does not start (OutOfMemoryError)"
        )


def _cut_queues(dispatcher: QueueDispatcher, rules: LogRules, queue_end: int, end_phy_offset: int) -> None:
    queues = [*dispatcher.queues.values(), *dispatcher.batch_queues.values()]
    when = rules.behaviour.queue_cut
    if when is QueueCut.END_NOW:
        queue_end = max((queue.end_phy_offset for queue in queues), default=-1)
    if rules.aborted if when is QueueCut.AFTER_CRASH else queue_end >= end_phy_offset:
        for queue in queues:
            queue.truncate(end_phy_offset)


def _cut_log(result: LogRecovery) -> None:
    """Unlink the files that start after the end (3.5)."""
    end = result.end_phy_offset
    result.deleted = [segment.name for segment in result.segments if segment.phy_offset > end]
    result.segments = [segment for segment in result.segments if segment.phy_offset <= end]
    result.written = {
        s.phy_offset: end % s.size_bytes if end >= 0 else -(-end % s.size_bytes)  # as Java divides
        for s in result.segments
        if s.size_bytes and end < s.end_phy_offset
    }


# -- catching up at start (1.7, 6.1) --------------------------------------------------------------------------------


def catch_up(store: Store, result: LogRecovery, rules: LogRules, dispatcher: QueueDispatcher) -> None:
    """Dispatch from the queues' end to the log's end; the broker's start waits for it, for ever if dispatch is stuck."""
    queues = [*dispatcher.queues.values(), *dispatcher.batch_queues.values()]
    at = max((queue.end_phy_offset for queue in queues), default=0)
    at = max(at, result.min_phy_offset, 0)
    size = result.segments[0].size_bytes if result.segments else 1
    lookup = FileLookup([segment.phy_offset for segment in result.segments], size)
    while at < result.max_phy_offset and not result.refusal:
        place = lookup.place(at)
        segment = result.segments[place] if place is not None else None
        readable = result.readable_end(segment) if segment is not None else at
        previous = at
        at = segment.phy_offset + at % size if segment is not None else at  # dispatch continues there
        if segment is None or at >= readable:
            lacks = "no log file is" if segment is None else "its log file holds nothing"
            result.refusal = f"dispatch stands still at {at}, where {lacks}, and start waits for it for ever"
            break
        try:
            at = _dispatch_segment(store, segment, at, readable, rules, dispatcher, result)
        except DispatchError as error:
            result.refusal = f"{error}: dispatch stands still there, and start waits for it for ever"
        if at <= previous and not result.refusal:
            result.refusal = f"dispatch comes back to {at}, and start waits for it for ever"
    dispatcher.settle()


def _dispatch_segment(
    store: Store,
    segment: Segment,
    at: int,
    readable: int,
    rules: LogRules,
    dispatcher: QueueDispatcher,
    result: LogRecovery,
) -> int:
    """Dispatch one segment from ``at`` on and return where dispatch continues. A bad record hides the rest of the segment.

    A record whose parts do not add up counts with the size it claims, while the broker reads on where the parts end and
    still skips all that it has not counted as read: it may continue in the next segment, between two records.
    """
    place, claimed, consumed = at, 0, 0
    walking = rules.walk(check_crc=False)
    while True:
        walk = SegmentWalk(store.log, segment, walking, place, readable)
        for table in walk:
            dispatcher.dispatch(table, knows_delays=True)
        stopped = walk.stopped
        if stopped.verdict is not Verdict.MISMATCH or not stopped.consumed_bytes:
            break
        place = walk.end + stopped.consumed_bytes
        claimed, consumed = claimed + stopped.size_bytes, consumed + stopped.consumed_bytes
    if stopped.verdict is Verdict.BLANK:
        counted = walk.end - consumed + claimed
        return counted - counted % segment.size_bytes + segment.size_bytes
    if stopped.verdict is Verdict.OUT_OF_MEMORY:
        result.refusal = f"dispatch dies of OutOfMemoryError at {walk.end}, and start waits for it for ever"
    elif walk.end < readable and not rules.is_master:
        result.refusal = f"dispatch waits at {walk.end} for a record that it can read, and start for dispatch"
    return readable + claimed


# -- the file of an offset (``MappedFileQueue``; 1.4) -----------------------------------------------------------------


class FileLookup:
    """The files of a sequence in a broker's order, each given by its start. All have one size.

    The place of an offset in its file is the remainder of its division by the size, wherever the file starts.
    """

    def __init__(self, starts: Sequence[int], size_bytes: int) -> None:
        self._starts = starts
        self.size_bytes = size_bytes
        self.is_plain = all(start % size_bytes == 0 for start in starts) and all(
            before < after for before, after in pairwise(starts)
        )

    def place(self, phy_offset: int) -> int | None:
        """Return the index of the file that a broker reads for an offset, or None."""
        found = int(self.places(np.array([phy_offset], np.int64))[0])
        return None if found < 0 else found

    def places(self, phy_offsets: Ints) -> Ints:
        """Return ``place`` of many offsets; -1 where no file is read."""
        places = np.full(len(phy_offsets), -1, np.int64)
        if not self._starts:
            return places
        starts, size = np.array(self._starts, np.int64), self.size_bytes
        first = self._starts[0]
        number = phy_offsets // size - (first // size if first >= 0 else -(-first // size))  # as Java divides
        in_range = (phy_offsets >= first) & (phy_offsets < self._starts[-1] + size)
        in_turn = starts[np.clip(number, 0, len(starts) - 1)]
        is_there = in_range & (number >= 0) & (number < len(starts))
        is_there &= (phy_offsets >= in_turn) & (phy_offsets < in_turn + size)
        places[is_there] = number[is_there]
        unplaced = in_range & ~is_there
        for place, start in enumerate(self._starts) if unplaced.any() else ():
            is_inside = unplaced & (phy_offsets >= start) & (phy_offsets < start + size)
            places[is_inside] = place
            unplaced &= ~is_inside
        return places

    def offset_of(self, start: int, in_file: Ints) -> Ints:
        """Return the offsets within a file's range for which a broker reads at these places of the file."""
        offsets = start - start % self.size_bytes + in_file
        return np.where(offsets < start, offsets + self.size_bytes, offsets)
