"""Which messages a start loses: those behind the log's cut, and those that no queue leads to afterwards.

Queue entries tell almost everything: the records of a segment follow each other, so entries whose ends are the next ones'
starts, from the segment's start to its blank, leave no message out. Only where they do not is the log read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.file_lookup import FileLookup
from store_core.broker.queue_recovery import QueueState
from store_core.codec.properties import KEYS, parse_properties, split_keys
from store_core.codec.record import body_crc_ok
from store_core.codec.text import decode_text
from store_core.derive.dispatch import inner_batch_size
from store_core.kernel.codes import FrameCode, FrameKind, PropertyFlag
from store_core.kernel.entries import Entries, chain_sums
from store_core.kernel.twin_entries import hashes
from store_core.layout import paths, record
from store_core.mend.lost_run import MOST_KEYS_PER_RUN, LostRun
from store_core.mend.prediction.covered import Covered, Span
from store_core.read.records import read_message
from store_core.scan.log import Progress, ScanOptions, scan_log, scan_segment
from store_core.storage.store import QueueKey

if TYPE_CHECKING:
    from store_core.broker.entry_runs import EntryRuns
    from store_core.broker.start import Start
    from store_core.kernel.entry_runs import EntryRun
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment, SegmentSequence
    from store_core.storage.store import Store

Ints = NDArray[np.int64]

_CHUNK_BYTES: Final = 4 << 20  # of queue files, at a time
_MOST_LOOKED_AT: Final = 64  # entries of a queue, for one that leads to a record of its own
_ALL_ONES: Final = (1 << 64) - 1
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
    """Lost messages by queue, as runs of consecutive queue offsets; memory grows with the runs only.

    Those whose body does not match its checksum are among them; ``readable`` is a book without these.
    """

    messages: int = 0
    _runs: dict[QueueKey, list[_Run]] = field(default_factory=dict)
    _readable: LossBook | None = None  # None while it would be the same

    @property
    def readable(self) -> LossBook:
        return self._readable or self

    def add(self, key: QueueKey, table: FrameTable, rows: Ints, messages: int, size_bytes: int) -> None:
        """Rows of one queue, whose ``messages`` have consecutive queue offsets; their records have ``size_bytes`` together."""
        bad = table.of_code(FrameCode.BAD_CRC)[rows]
        if self._readable is None and bad.any():
            self._readable = LossBook(self.messages, deepcopy(self._runs))
        self._add(key, table, rows, messages, size_bytes)
        if self._readable is not None:
            for part in np.split(rows, np.flatnonzero(np.diff(bad)) + 1):
                if not table.of_code(FrameCode.BAD_CRC)[part[0]]:
                    counts = int(_messages_in(table, part).sum())
                    self._readable._add(key, table, part, counts, int(table.size_bytes[part].sum()))

    def _add(self, key: QueueKey, table: FrameTable, rows: Ints, messages: int, size_bytes: int) -> None:
        self.messages += messages
        runs = self._runs.setdefault(key, [])
        first = int(table.queue_offset[rows[0]])
        if not runs or runs[-1].last + 1 != first:
            runs.append(_Run(first, first, 0, 0))
        run = runs[-1]
        run.last = first + messages - 1
        run.messages += messages
        run.size_bytes += size_bytes
        if len(run.keys) < MOST_KEYS_PER_RUN:
            with_keys = rows[(table.property_flags[rows] & PropertyFlag.KEYS) != 0]
            for row in with_keys[:_MOST_LOOKED_AT]:
                found = split_keys(parse_properties(table.properties(int(row))).get(KEYS))
                run.keys += [key for key in dict.fromkeys(found) if key not in run.keys]

    def runs(self) -> tuple[LostRun, ...]:
        return tuple(
            LostRun(
                key.topic, key.queue_id, r.first, r.last, r.messages, r.size_bytes, tuple(r.keys[:MOST_KEYS_PER_RUN])
            )
            for key, runs in sorted(self._runs.items())
            for r in runs
        )


def losses(store: Store, start: Start, *, on_progress: Progress | None = None) -> LossBook:
    """All messages that a start which succeeds loses. Raises FailedError where a file cannot be read.

    ``on_progress`` is told the bytes of the log behind where the scan began: it went as far as the cut, and here it goes on.
    """
    book = LossBook()
    finder = _Finder(store, start, book)
    finder.behind_the_cut(on_progress)
    finder.without_entries()
    return book


def mark_of(start: Start) -> bytes | None:
    """What the losses follow from, as a digest: starts of two releases with the same one lose the same messages.

    None where queues got entries, which lie in that start's own memory, or hide some in a way that hangs on the release.
    """
    log = start.log
    told = hashlib.sha256()
    segments = [(segment.phy_offset, segment.size_bytes) for segment in log.segments]
    told.update(repr((log.max_phy_offset, segments)).encode())
    told.update(repr(sorted(start.loaded.topic_attributes or ())).encode())
    for queue in start.queues:
        if queue.has_appended or (queue.hides_entries and not isinstance(queue, BatchQueueState)):
            return None
        place = queue.key, queue.entry_size_bytes, queue.starts, queue.min_position, queue.end
        told.update(repr((*place, queue.min_offset, queue.max_offset)).encode())
    return told.digest()


class _Finder:
    def __init__(self, store: Store, start: Start, book: LossBook) -> None:
        self._store = store
        self._book = book
        self._start = start
        self._end = start.log.max_phy_offset
        files = start.log.segments
        self._lookup = FileLookup([f.phy_offset for f in files], files[0].size_bytes if files else 1)
        # 4.x puts what it cannot tell into a queue without a topic, where it leads to the log's first byte.
        self._queues = [
            queue for queue in start.queues if queue.key.topic and not queue.key.topic.startswith(paths.LMQ_PREFIX)
        ]
        self._by_key = {queue.key: queue for queue in self._queues}
        self._keys: dict[tuple[bytes, int], QueueKey | None] = {}  # queues, by what records say

    # -- behind the cut ------------------------------------------------------------------------------------------

    def behind_the_cut(self, on_progress: Progress | None) -> None:
        name = self._start.log.first_file_scanned
        scanned = next((s for s in self._store.log.segments if s.name == name), None)
        begin = scanned.phy_offset if scanned is not None else self._end
        for segment in self._segments():
            kept_to = self._kept_to(segment)
            if kept_to < segment.end_phy_offset:
                for table in self._scan(segment, kept_to, segment.end_phy_offset):
                    self._lose(table, _messages(table), was_cut=True)
                    if on_progress is not None:
                        on_progress(table.end_phy_offset - begin)

    def _segments(self) -> Iterator[Segment]:
        """The log's files as they were found: those that the broker maps, and what else has a segment's name."""
        mapped = self._start.loaded.segments
        yield from mapped
        paths_mapped = {segment.path for segment in mapped}
        yield from (segment for segment in self._store.log.segments if segment.path not in paths_mapped)

    def _kept_to(self, segment: Segment) -> int:
        """Where what the broker keeps of a file ends."""
        is_kept = segment in self._start.log.segments
        return max(self._start.log.readable_end(segment), segment.phy_offset) if is_kept else segment.phy_offset

    def _scan(self, segment: Segment, start: int, end: int) -> Iterator[FrameTable]:
        """A part of a file; also what lies in a blank, for damage may look like one."""
        log = self._store.log.holding(segment)
        if segment.phy_offset < 0:  # its name has a minus sign, and a scan knows no offset of it
            start, end = start - segment.phy_offset, end - segment.phy_offset
            segment = replace(segment, phy_offset=0)
            log = log.alone(segment)
        with nullcontext(self._store) if log is self._store.log else self._store.with_log(log) as view:
            from_phy_offset = None if start == segment.phy_offset else start
            parts = [(from_phy_offset, end)]
            while parts:
                for table in scan_segment(view, segment, ScanOptions(), *parts.pop()):
                    yield table
                    for row in np.flatnonzero(table.of_kind(FrameKind.BLANK)).tolist():
                        at = int(table.phy_offset[row]) + record.PREFIX.size_bytes
                        stop = int(table.phy_offset[row] + table.size_bytes[row])
                        if _holds_data(log, at, stop):
                            parts.append((at, stop))

    # -- without an entry ----------------------------------------------------------------------------------------

    def without_entries(self) -> None:
        segments = [s for s in self._start.log.segments if self._kept_to(s) > s.phy_offset]
        if not segments:
            return
        spans: list[Span] = []
        if self._lookup.is_plain:
            segments = _incomplete(self._store, segments, self._end, self._queues, self._start.runs, spans)
        else:  # an entry may lead into a file that is asked for before
            stretches = ((queue, *stretch) for queue in self._queues for stretch in _stretches(queue))
            spans += (Span(queue, begin, stop, is_rising=False) for queue, _, begin, stop in stretches)
        for segment in segments:
            self._look_into(segment, spans)

    def _look_into(self, segment: Segment, spans: list[Span]) -> None:
        """Read a segment for messages that no entry leads to."""
        end = self._kept_to(segment)
        if segment.phy_offset < 0:  # no entry leads there
            for table in self._scan(segment, segment.phy_offset, end):
                self._lose(table, _messages(table), was_cut=False)
            return
        # Where a file lies off the grid, a place in it may be read for an offset behind the file's end.
        read_to = end if self._lookup.is_plain else min(end + self._lookup.size_bytes, paths.LARGEST_OFFSET)
        covered = Covered(segment.phy_offset, read_to)
        for span in spans:
            for starts, ends in span.places(read_to):
                covered.add(starts, ends)
        place = self._start.log.segments.index(segment)
        for table in self._scan(segment, segment.phy_offset, end):
            offsets = self._lookup.offset_of(segment.phy_offset, table.phy_offset - segment.phy_offset)
            # A log that 4.x counts by what lengths claim may end inside a record, which no entry brings then.
            is_reached = (offsets >= segment.phy_offset) & (offsets < read_to)
            is_reached[is_reached] = covered.has(offsets[is_reached], (offsets + table.size_bytes)[is_reached])
            if not self._lookup.is_plain:
                is_reached &= (self._lookup.places(offsets) == place) & (table.phy_offset + table.size_bytes <= end)
            self._lose(table, _messages(table) & ~is_reached, was_cut=False)

    # -- what counts ---------------------------------------------------------------------------------------------

    def _lose(self, table: FrameTable, mask: NDArray[np.bool_], *, was_cut: bool) -> None:
        rows = np.flatnonzero(mask)
        if len(rows):
            rows = rows[~self._stands_elsewhere(table, rows)]
        if not len(rows):
            return
        for run, messages, size_bytes in _runs_of(table, rows):
            first = int(run[0])
            key = self._key_of(table.topic(first), int(table.queue_id[first]))
            if key is not None and (was_cut or not self._is_superseded(key, table, first)):
                self._book.add(key, table, run, messages, size_bytes)

    def _key_of(self, topic: bytes, queue_id: int) -> QueueKey | None:
        """The queue of a lost message; None where its topic is none of the store's: messages of a deleted topic are nobody's loss."""
        raw = topic, queue_id
        if raw not in self._keys:
            name, topics = decode_text(topic), self._start.loaded.topic_attributes
            is_known = not topics or name in topics or name in _SYSTEM_TOPICS
            is_known = is_known or any(known.topic == name for known in self._store.queues)
            is_light = name.startswith(paths.LMQ_PREFIX)  # a tombstone's
            self._keys[raw] = QueueKey(name, queue_id) if is_known and not is_light else None
        return self._keys[raw]

    def _stands_elsewhere(self, table: FrameTable, rows: Ints) -> NDArray[np.bool_]:
        """Mask of records that are no messages of their own: copies of what stands, whole, in the place that they tell; and
        those whose number in their queue leads to another record that tells it."""
        mask = np.zeros(len(rows), np.bool_)
        places, own = table.phy_offset[rows], table.own_phy_offset[rows]
        for number in np.flatnonzero(own != places).tolist():
            data = self._store.log.read(int(own[number]), int(table.size_bytes[rows[number]]))
            mask[number] = data == bytes(table.record(int(rows[number])))
        group = (table.topic_id[rows].astype(np.int64) << 32) + table.queue_id[rows]
        for one in np.unique(group).tolist():
            mine = np.flatnonzero((group == one) & ~mask)
            if len(mine):
                mask[mine] = self._have_others_numbers(table, rows[mine])
        return mask

    def _have_others_numbers(self, table: FrameTable, rows: Ints) -> NDArray[np.bool_]:
        """Mask of the records of one queue whose number there leads to another record that tells it, too."""
        mask = np.zeros(len(rows), np.bool_)
        key = self._key_of(table.topic(int(rows[0])), int(table.queue_id[rows[0]]))
        queue = self._by_key.get(key) if key is not None else None
        if key is None or queue is None or isinstance(queue, BatchQueueState):
            return mask
        numbers = table.queue_offset[rows]
        within = np.flatnonzero((numbers >= queue.min_offset) & (numbers < queue.max_offset))
        width = queue.entry_size_bytes
        for part in np.split(within, np.flatnonzero(np.diff(numbers[within]) != 1) + 1) if len(within) else ():
            first = int(numbers[part[0]])
            entries = queue.entries(first * width, (first + len(part)) * width)
            leads_elsewhere = entries["phy_offset"] != table.phy_offset[rows[part]]
            leads_elsewhere &= entries["size_bytes"] >= record.MIN_RECORD_SIZE_BYTES
            for place in np.flatnonzero(leads_elsewhere).tolist():
                mask[part[place]] = self._is_told_at(key, first + place, *entries[place].tolist()[:2])
        return mask

    def _is_told_at(self, key: QueueKey, number: int, at: int, size_bytes: int) -> bool:
        """Whether the record that a queue's entry leads to is whole and tells that number of that queue."""
        other = read_message(self._store.log, at) if at + size_bytes <= self._end else None
        if other is None or other.own_phy_offset != at or other.size_bytes != size_bytes:
            return False
        return (other.topic, other.queue_id, other.queue_offset) == (*key, number) and body_crc_ok(other)

    def _is_superseded(self, key: QueueKey, table: FrameTable, row: int) -> bool:
        """Whether the queue has begun anew since: its next record in the log has a number that is no higher."""
        queue = self._by_key.get(key)
        if queue is None or isinstance(queue, BatchQueueState):
            return False
        for following in _behind(queue, int(table.phy_offset[row])):
            message = read_message(self._store.log, following)
            if message is not None and (message.topic, message.queue_id) == key:
                return message.queue_offset <= int(table.queue_offset[row])
        return False


def losses_behind(store: Store, phy_offset: int) -> LossBook:
    """All messages that a cut of the log takes away."""
    book = LossBook()
    for table in scan_log(store, from_phy_offset=phy_offset):
        rows = np.flatnonzero(_messages(table))
        for run, messages, size_bytes in _runs_of(table, rows) if len(rows) else ():
            key = QueueKey(decode_text(table.topic(int(run[0]))), int(table.queue_id[run[0]]))
            book.add(key, table, run, messages, size_bytes)
    return book


def _runs_of(table: FrameTable, rows: Ints) -> Iterator[tuple[Ints, int, int]]:
    """Rows of one queue with consecutive queue offsets, how many messages they hold, and their size."""
    group = (table.topic_id[rows].astype(np.int64) << 32) + table.queue_id[rows]
    order = np.argsort(group, kind="stable")
    rows, group = rows[order], group[order]
    counts = _messages_in(table, rows)
    breaks = (np.diff(group) != 0) | (np.diff(table.queue_offset[rows]) != counts[:-1])
    starts = np.r_[0, np.flatnonzero(breaks) + 1]
    sizes, messages = (np.add.reduceat(column, starts).tolist() for column in (table.size_bytes[rows], counts))
    for (start, stop), size_bytes, held in zip(pairwise([*starts.tolist(), len(rows)]), sizes, messages, strict=True):
        yield rows[start:stop], held, size_bytes


def _messages(table: FrameTable) -> NDArray[np.bool_]:
    kind = table.sys_flag & record.TRANSACTION_MASK
    mask: NDArray[np.bool_] = table.messages & ((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT))
    return mask


def _messages_in(table: FrameTable, rows: Ints) -> Ints:
    """How many messages each record holds."""
    counts = np.ones(len(rows), np.int64)
    for place in np.flatnonzero(table.with_property(PropertyFlag.INNER_NUM)[rows]).tolist():
        counts[place] = inner_batch_size(parse_properties(table.properties(int(rows[place]))))
    return counts


def _behind(queue: QueueState, phy_offset: int) -> list[int]:
    """Log offsets of the queue's first entries that point behind ``phy_offset``, for entries in order."""
    low, high = queue.min_offset, queue.max_offset
    width = queue.entry_size_bytes
    while low < high:
        middle = (low + high) // 2
        if queue.entries(middle * width, (middle + 1) * width)["phy_offset"][0] <= phy_offset:
            low = middle + 1
        else:
            high = middle
    stop = min(low + _MOST_LOOKED_AT, queue.max_offset)
    found = queue.entries(low * width, stop * width)["phy_offset"].tolist() if low < stop else []
    return [at for at in found if at > phy_offset]


def _stretches(queue: QueueState) -> Iterator[tuple[int, int, int]]:
    """What consumers reach of a queue: the start of each file, and from and to in it. Between files there may be a hole."""
    first = _first_position(queue)
    for start, following in pairwise([*queue.starts, queue.end]):
        size = queue.written_in(start) if isinstance(queue, BatchQueueState) else queue.file_size_bytes
        begin, end = max(start, first), min(following, start + size)
        if begin < end:
            yield start, begin, end


def _first_position(queue: QueueState) -> int:
    return queue.starts[0] if queue.starts and isinstance(queue, BatchQueueState) else queue.min_position


def _entries_between(queue: QueueState, begin: int, end: int) -> Iterator[Entries]:
    step = _CHUNK_BYTES - _CHUNK_BYTES % queue.entry_size_bytes
    for at in range(begin, end, step):
        entries = queue.entries(at, min(at + step, end))
        yield entries[queue.reaches(at, entries)] if queue.hides_entries else entries


def _incomplete(
    store: Store,
    segments: list[Segment],
    end: int,
    queues: list[QueueState],
    runs: EntryRuns | None,
    spans: list[Span],
) -> list[Segment]:
    """Segments whose entries do not follow each other from the start to the blank or the end.

    ``spans`` gets all entries that consumers reach.
    """
    starts = np.array([s.phy_offset for s in segments], np.int64)
    ends = np.array([min(s.end_phy_offset, end) for s in segments], np.int64)
    sums, last = np.zeros(len(starts), np.uint64), starts.copy()
    known: dict[int, int] = {}  # sums of runs
    uses_runs = runs is not None and runs.log_segments[: len(segments)] == tuple(segments)
    for queue in queues:
        uses_its_runs = uses_runs and not queue.hides_entries
        for begin, stop, run in _files_of(queue, segments[0].phy_offset, end, uses_runs=uses_its_runs):
            if run is not None:
                spans.append(Span(queue, begin, stop, is_rising=True))
                for number, sum_, _, highest in run.parts:
                    if number < len(segments):
                        known[number] = known.get(number, 0) + sum_
                        last[number] = max(last[number], highest)
                continue
            highest, is_rising = -1, True
            for entries in _entries_between(queue, begin, stop):
                found = chain_sums(entries, starts, ends)
                sums, last = sums + found.sums, np.maximum(last, found.last)
                phy_offsets = np.r_[highest, entries["phy_offset"]]
                is_rising = is_rising and bool((phy_offsets[1:] >= phy_offsets[:-1]).all())
                highest = int(phy_offsets[-1])
            spans.append(Span(queue, begin, stop, is_rising=is_rising))
    sums += np.array([known.get(number, 0) & _ALL_ONES for number in range(len(segments))], np.uint64)
    is_chain = sums == hashes(starts) - hashes(last)
    return [
        segment
        for number, segment in enumerate(segments)
        if not is_chain[number] or not _ends_there(store, segment, int(last[number]), int(ends[number]))
    ]


def _files_of(
    queue: QueueState, log_start: int, log_end: int, *, uses_runs: bool
) -> Iterator[tuple[int, int, EntryRun | None]]:
    """What consumers reach of a queue, file by file: from, to, and the file's run where that tells just this part.

    It does where it ends with the part and in front of the log's end, and where what it holds in front of the part lies in
    front of the log's start.
    """
    width = queue.entry_size_bytes
    for start, low, high in _stretches(queue):
        run = queue.plain_run(start) if uses_runs else None
        if run is not None and (start + run.length * width != high or run.last >= log_end):
            run = None
        if run is not None and low > start:
            before = queue.entries(low - width, low)["phy_offset"][0]
            run = run if before < log_start else None
        yield low, high, run


def _ends_there(store: Store, segment: Segment, at: int, end: int) -> bool:
    """Whether the records of a segment end at ``at``: with the log, with the segment, or with a blank."""
    if at >= end:
        return at == end
    prefix = store.log.read(at, record.PREFIX.size_bytes)
    if len(prefix) < record.PREFIX.size_bytes:
        return at > segment.end_phy_offset - record.PREFIX.size_bytes
    is_blank = record.PREFIX.read(prefix)["magic"] == record.MAGIC_BLANK
    return bool(is_blank) and not _holds_data(store.log, at + len(prefix), end)


def _holds_data(log: SegmentSequence, start: int, end: int) -> bool:
    """Whether a part of one file, as a rule shorter than a record, holds anything but zeros."""
    if end - start > record.MAX_RECORD_SIZE_BYTES:
        segment = log.find(start)
        return segment is not None and log.used_end(segment.phy_offset) > start
    return bool(log.read(start, end - start).strip(b"\0"))
