"""Which messages a start loses: those behind the log's cut, and those that no queue leads to afterwards.

Queue entries tell almost everything: the records of a segment follow each other, so entries whose ends are the next ones'
starts, from the segment's start to its blank, leave no message out. Only where they do not is the log read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.queue_recovery import BatchQueueState, QueueState
from store_core.codec.properties import KEYS, parse_properties, split_keys
from store_core.codec.text import decode_text
from store_core.kernel.codes import PropertyFlag
from store_core.kernel.entries import Entries, chain_sums
from store_core.kernel.twin_entries import hashes
from store_core.layout import paths, record
from store_core.mend.salvage.lost import MOST_KEYS_PER_RUN, LostRun
from store_core.scan.log import ScanOptions, scan_segment
from store_core.storage.store import QueueKey

if TYPE_CHECKING:
    from store_core.broker.start import Start
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment
    from store_core.storage.store import Store

Ints = NDArray[np.int64]

_CHUNK_BYTES: Final = 4 << 20  # of queue files, at a time
_MOST_ENTRIES: Final = 1 << 21  # held in memory to find gaps
_NEAR_BYTES: Final = 1 << 20  # gaps closer than this are read together
_SYSTEM_TOPICS: Final = frozenset((paths.SCHEDULE_TOPIC, paths.HALF_TOPIC, paths.OP_TOPIC))


@dataclass(slots=True)
class _Run:
    first: int
    last: int
    messages: int
    size_bytes: int
    keys: list[str] = field(default_factory=list)


@dataclass(slots=True)
class LossBook:
    """Lost messages by queue, as runs of consecutive queue offsets; memory grows with the runs only."""

    messages: int = 0
    _runs: dict[QueueKey, list[_Run]] = field(default_factory=dict)

    def add(self, key: QueueKey, table: FrameTable, rows: Ints) -> None:
        """Rows of one queue, with queue offsets that rise by one."""
        self.messages += len(rows)
        runs = self._runs.setdefault(key, [])
        first, last = int(table.queue_offset[rows[0]]), int(table.queue_offset[rows[-1]])
        if not runs or runs[-1].last + 1 != first:
            runs.append(_Run(first, last, 0, 0))
        run = runs[-1]
        run.last = last
        run.messages += len(rows)
        run.size_bytes += int(table.size_bytes[rows].sum())
        with_keys = rows[(table.property_flags[rows] & PropertyFlag.KEYS) != 0]
        for row in with_keys[: MOST_KEYS_PER_RUN - len(run.keys)]:
            run.keys += split_keys(parse_properties(table.properties(int(row))).get(KEYS))

    def runs(self) -> tuple[LostRun, ...]:
        return tuple(
            LostRun(
                key.topic, key.queue_id, r.first, r.last, r.messages, r.size_bytes, tuple(r.keys[:MOST_KEYS_PER_RUN])
            )
            for key, runs in sorted(self._runs.items())
            for r in runs
        )


def losses(store: Store, start: Start) -> LossBook:
    """All messages that a start which succeeds loses. Raises FailedError where a file cannot be read."""
    book = LossBook()
    finder = _Finder(store, start, book)
    finder.behind_the_cut()
    finder.without_entries()
    return book


class _Finder:
    def __init__(self, store: Store, start: Start, book: LossBook) -> None:
        self._store = store
        self._book = book
        self._start = start
        self._end = start.log.max_phy_offset
        self._queues = [queue for queue in start.queues if not queue.key.topic.startswith(paths.LMQ_PREFIX)]
        self._by_key = {queue.key: queue for queue in self._queues}
        self._topics = start.loaded.topic_attributes

    # -- behind the cut ------------------------------------------------------------------------------------------

    def behind_the_cut(self) -> None:
        for segment in self._store.log.segments:
            if segment.end_phy_offset > self._end:
                for table in self._scan(segment, max(segment.phy_offset, self._end), segment.end_phy_offset):
                    self._lose(table, _messages(table), was_cut=True)

    def _scan(self, segment: Segment, start: int, end: int) -> Iterator[FrameTable]:
        from_phy_offset = None if start == segment.phy_offset else start
        return scan_segment(self._store, segment, ScanOptions(), from_phy_offset, end)

    # -- without an entry ----------------------------------------------------------------------------------------

    def without_entries(self) -> None:
        segments = [s for s in self._start.log.segments if s.phy_offset < self._end]
        if not segments:
            return
        open_ones = _incomplete(self._store, segments, self._end, self._queues)
        batch: list[tuple[Segment, int]] = []
        for segment, count in open_ones:
            if batch and sum(c for _, c in batch) + count > _MOST_ENTRIES:
                self._look_into([s for s, _ in batch])
                batch = []
            batch.append((segment, count))
        if batch:
            self._look_into([s for s, _ in batch])

    def _look_into(self, segments: list[Segment]) -> None:
        """Read the parts of the log that no entry covers."""
        starts = np.array([s.phy_offset for s in segments], np.int64)
        ends = np.array([min(s.end_phy_offset, self._end) for s in segments], np.int64)
        held: list[tuple[Ints, Ints]] = []
        for entries in _all_entries(self._queues):
            offsets, sizes = entries["phy_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
            place = np.searchsorted(starts, offsets, "right") - 1
            inside = (place >= 0) & (offsets < ends[place]) & (sizes > 0) & (sizes <= record.MAX_RECORD_SIZE_BYTES)
            held.append((offsets[inside], sizes[inside]))
        offsets = np.concatenate([o for o, _ in held]) if held else np.zeros(0, np.int64)
        sizes = np.concatenate([s for _, s in held]) if held else np.zeros(0, np.int64)
        order = np.argsort(offsets, kind="stable")
        offsets, sizes = offsets[order], sizes[order]
        for segment, end in zip(segments, ends, strict=True):
            low, high = np.searchsorted(offsets, (segment.phy_offset, end))
            for gap_start, gap_end in _gaps(offsets[low:high], sizes[low:high], segment.phy_offset, int(end)):
                for table in self._scan(segment, gap_start, gap_end):
                    known = np.isin(table.phy_offset, offsets[low:high])
                    self._lose(table, _messages(table) & ~known, was_cut=False)

    # -- what counts ---------------------------------------------------------------------------------------------

    def _lose(self, table: FrameTable, mask: NDArray[np.bool_], *, was_cut: bool) -> None:
        rows = np.flatnonzero(mask)
        if not len(rows):
            return
        group = (table.topic_id[rows].astype(np.int64) << 32) + table.queue_id[rows]
        order = np.argsort(group, kind="stable")
        rows, group = rows[order], group[order]
        breaks = (np.diff(group) != 0) | (np.diff(table.queue_offset[rows]) != 1)
        for run in np.split(rows, np.flatnonzero(breaks) + 1):
            key = QueueKey(decode_text(table.topic(int(run[0]))), int(table.queue_id[run[0]]))
            if self._is_known(key) and (was_cut or not self._is_superseded(key, table, int(run[0]))):
                self._book.add(key, table, run)

    def _is_known(self, key: QueueKey) -> bool:
        """Whether the topic is still one of the store's; messages of a deleted topic are nobody's loss."""
        topics = self._topics
        return (
            not topics
            or key.topic in topics
            or key.topic in _SYSTEM_TOPICS
            or any(known.topic == key.topic for known in self._store.queues)
        )

    def _is_superseded(self, key: QueueKey, table: FrameTable, row: int) -> bool:
        """Whether the queue has begun anew since: its next record in the log has a number that is no higher."""
        queue = self._by_key.get(key)
        if queue is None or isinstance(queue, BatchQueueState):
            return False
        following = _first_behind(queue, int(table.phy_offset[row]))
        if following is None:
            return False
        head = self._store.log.read(following, record.HEAD.size_bytes)
        if len(head) < record.HEAD.size_bytes:
            return False
        number: int = record.HEAD.read(head)["queue_offset"]
        return number <= int(table.queue_offset[row])


def _messages(table: FrameTable) -> NDArray[np.bool_]:
    kind = table.sys_flag & record.TRANSACTION_MASK
    mask: NDArray[np.bool_] = table.messages & ((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT))
    return mask


def _first_behind(queue: QueueState, phy_offset: int) -> int | None:
    """Log offset of the queue's first entry that points behind ``phy_offset``, for entries in order."""
    low, high = queue.min_offset, queue.max_offset
    width = queue.entry_size_bytes
    while low < high:
        middle = (low + high) // 2
        if queue.entries(middle * width, (middle + 1) * width)["phy_offset"][0] <= phy_offset:
            low = middle + 1
        else:
            high = middle
    if low >= queue.max_offset:
        return None
    return int(queue.entries(low * width, (low + 1) * width)["phy_offset"][0])


def _all_entries(queues: list[QueueState]) -> Iterator[Entries]:
    """All entries that consumers reach, chunk by chunk."""
    for queue in queues:
        width = queue.entry_size_bytes
        step = _CHUNK_BYTES - _CHUNK_BYTES % width
        begin = queue.starts[0] if queue.starts and isinstance(queue, BatchQueueState) else queue.min_position
        for at in range(begin, queue.end, step):
            yield queue.entries(at, min(at + step, queue.end))


def _incomplete(store: Store, segments: list[Segment], end: int, queues: list[QueueState]) -> list[tuple[Segment, int]]:
    """Segments whose entries do not follow each other from the start to the blank or the end, with the entries' number."""
    starts = np.array([s.phy_offset for s in segments], np.int64)
    ends = np.array([min(s.end_phy_offset, end) for s in segments], np.int64)
    sums, counts, last = np.zeros(len(starts), np.uint64), np.zeros(len(starts), np.int64), starts.copy()
    for entries in _all_entries(queues):
        found = chain_sums(entries, starts, ends)
        sums, counts, last = sums + found.sums, counts + found.counts, np.maximum(last, found.last)
    is_chain = sums == hashes(starts) - hashes(last)
    return [
        (segment, int(counts[number]))
        for number, segment in enumerate(segments)
        if not is_chain[number] or not _ends_there(store, segment, int(last[number]), int(ends[number]))
    ]


def _ends_there(store: Store, segment: Segment, at: int, end: int) -> bool:
    """Whether the records of a segment end at ``at``: with the log, with the segment, or with a blank."""
    if at == end:
        return True
    prefix = store.log.read(at, record.PREFIX.size_bytes)
    if len(prefix) < record.PREFIX.size_bytes:
        return at > segment.end_phy_offset - record.PREFIX.size_bytes
    return bool(record.PREFIX.read(prefix)["magic"] == record.MAGIC_BLANK)


def _gaps(offsets: Ints, sizes: Ints, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Stretches of [start, end) that no entry covers; near ones are joined."""
    covered = np.maximum.accumulate(np.r_[start, offsets + sizes])
    following = np.r_[offsets, end]
    open_ = np.flatnonzero(following > covered)
    gap_start = gap_end = -1
    for place in open_:
        low, high = int(covered[place]), int(following[place])
        if gap_end >= 0 and low - gap_end <= _NEAR_BYTES:
            gap_end = high
            continue
        if gap_end >= 0:
            yield gap_start, gap_end
        gap_start, gap_end = low, high
    if gap_end >= 0:
        yield gap_start, gap_end
