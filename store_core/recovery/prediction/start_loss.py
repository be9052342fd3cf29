"""Find the messages that a start loses: those after the log's cut, and those without a queue entry afterwards.

The records of a segment adjoin each other. If its entries form a chain from the segment's start to its blank, where each
end is the next start, no message is without an entry. Only segments without such a chain are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.log_recovery import FileLookup
from store_core.broker.queue_recovery import QueueState
from store_core.codec.record import body_crc_ok
from store_core.codec.text import decode_text
from store_core.kernel.codes import FrameKind
from store_core.kernel.entries import Entries, chain_sums, hashes
from store_core.layout import paths, record
from store_core.read.records import read_message
from store_core.recovery.prediction.loss_book import LossBook, TableRuns, runs_of, with_room
from store_core.recovery.prediction.queue_coverage import Covered, Span
from store_core.scan.log import Progress, ScanOptions, scan_log, scan_segment
from store_core.storage.buffers import Buffers
from store_core.storage.store import QueueKey

if TYPE_CHECKING:
    from store_core.broker.start import Start
    from store_core.scan.frames import FrameTable
    from store_core.storage.sequence import Segment, SegmentSequence
    from store_core.storage.store import Store

Ints = NDArray[np.int64]

_CHUNK_BYTES: Final = 4 << 20  # of a queue file that are read at a time
_COVERED_BYTES: Final = 1 << 30  # small segments are grouped up to the usual size of a segment
_MOST_LOOKED_AT: Final = 64  # entries that are searched for one that points to a record of its queue
_NO_QUEUE: Final = -1
_ANYWHERE: Final = np.iinfo(np.int64)
# A queue has entries for queue offsets [min, max). After any log offset in [since, until) its next record has the queue
# offset ``next``, or is not found (not ``has_next``).
_QUEUE: Final = np.dtype(
    [("min", "i8"), ("max", "i8"), ("since", "i8"), ("until", "i8"), ("next", "i8"), ("has_next", np.bool_)]
)
_SYSTEM_TOPICS: Final = frozenset((paths.SCHEDULE_TOPIC, paths.HALF_TOPIC, paths.OP_TOPIC))


def losses(store: Store, start: Start, *, on_progress: Progress | None = None) -> LossBook:
    """Return all messages that a successful start loses. Raises FailedError if a file cannot be read.

    ``on_progress`` gets the bytes walked after the start of the broker's scan, which itself ended at the cut.
    """
    book = LossBook()
    finder = _Finder(store, start, book)
    finder.after_cut(on_progress)
    finder.without_entries()
    return book


def mark_of(start: Start) -> bytes | None:
    """Return a digest of the losses' inputs: starts of two releases with equal digests lose the same messages.

    None if queues hide entries in a way that depends on the release, or batch queues got new entries.
    """
    log = start.log
    digest = hashlib.sha256()
    segments = [(segment.phy_offset, segment.size_bytes) for segment in log.segments]
    digest.update(repr((log.max_phy_offset, segments, sorted(log.written.items()))).encode())
    digest.update(repr(sorted(map(str, start.loaded.topics or ()))).encode())
    for queue in start.queues:
        if queue.has_appended if isinstance(queue, BatchQueueState) else queue.hides_entries:
            return None
        digest.update(repr(queue.mark()).encode())
    return digest.digest()


class _Finder:
    def __init__(self, store: Store, start: Start, book: LossBook) -> None:
        self._store = store
        self._book = book
        self._start = start
        self._end = start.log.max_phy_offset
        files = start.log.segments
        self._lookup = FileLookup([f.phy_offset for f in files], files[0].size_bytes if files else 1)
        # 4.x adds unreadable records to a queue without a topic, with entries that point to the log's first byte.
        self._queues = [
            queue for queue in start.queues if queue.key.topic and not queue.key.topic.startswith(paths.LMQ_PREFIX)
        ]
        self._by_key = {queue.key: queue for queue in self._queues}
        self._buffers = Buffers()
        self._places = {segment: place for place, segment in enumerate(files)}
        self._numbers: dict[tuple[bytes, int], int] = {}  # the book's queue numbers, by topic and queue id
        self._keys: list[QueueKey] = []  # by queue number
        self._known: NDArray[Any] = np.zeros(0, _QUEUE)  # by queue number

    # -- after the cut -------------------------------------------------------------------------------------------

    def after_cut(self, on_progress: Progress | None) -> None:
        name = self._start.log.first_file_scanned
        scanned = next((s for s in self._store.log.segments if s.name == name), None)
        begin = scanned.phy_offset if scanned is not None else self._end
        for segment in self._segments():
            kept_to = self._kept_end(segment)
            if kept_to < segment.end_phy_offset:
                for table in self._scan(segment, kept_to, segment.end_phy_offset):
                    self._add_lost(table, _messages(table), was_cut=True)
                    if on_progress is not None:
                        on_progress(table.end_phy_offset - begin)

    def _segments(self) -> Iterator[Segment]:
        """Yield the log's files before the start: those that the broker maps, and others with a segment's name."""
        mapped = self._start.loaded.segments
        yield from mapped
        paths_mapped = {segment.path for segment in mapped}
        yield from (segment for segment in self._store.log.segments if segment.path not in paths_mapped)

    def _kept_end(self, segment: Segment) -> int:
        """Return the end of the part of a file that the broker keeps."""
        is_kept = segment in self._places
        return max(self._start.log.readable_end(segment), segment.phy_offset) if is_kept else segment.phy_offset

    def _scan(self, segment: Segment, start: int, end: int) -> Iterator[FrameTable]:
        """Yield the tables of a part of a file and of data in its blanks: damage can look like one."""
        log = self._store.log.holding(segment)
        if segment.phy_offset < 0:  # the file's name has a minus sign, and a scan takes no negative offsets
            start, end = start - segment.phy_offset, end - segment.phy_offset
            segment = replace(segment, phy_offset=0)
            log = log.alone(segment)
        with nullcontext(self._store) if log is self._store.log else self._store.with_log(log) as view:
            from_phy_offset = None if start == segment.phy_offset else start
            parts = [(from_phy_offset, end)]
            while parts:
                for table in scan_segment(view, segment, ScanOptions(), *parts.pop(), buffers=self._buffers):
                    yield table
                    for row in np.flatnonzero(table.of_kind(FrameKind.BLANK)).tolist():
                        at = int(table.phy_offset[row]) + record.PREFIX.size_bytes
                        stop = int(table.phy_offset[row] + table.size_bytes[row])
                        if _holds_data(log, at, stop):
                            parts.append((at, stop))

    # -- without an entry ----------------------------------------------------------------------------------------

    def without_entries(self) -> None:
        segments = [s for s in self._start.log.segments if self._kept_end(s) > s.phy_offset]
        if not segments:
            return
        spans: list[Span] = []
        if self._lookup.is_plain:
            segments = _segments_without_chain(self._store, segments, self._end, self._queues, spans)
        else:  # an entry may point into a file that is looked up earlier
            ranges = ((queue, *reached) for queue in self._queues for reached in _reached_ranges(queue))
            spans += (Span(*reached, is_rising=False) for reached in ranges)
        for group in self._groups(segments):
            self._find_uncovered(group, spans)

    def _groups(self, segments: list[Segment]) -> Iterator[list[Segment]]:
        """Group segments that are looked up together, so that each queue is read once for a group."""
        group: list[Segment] = []
        for segment in segments:
            if group and not self._belong_together(group[0], group[-1], segment):
                yield group
                group = []
            group.append(segment)
        if group:
            yield group

    def _belong_together(self, first: Segment, last: Segment, segment: Segment) -> bool:
        is_usual = self._lookup.is_plain and first.phy_offset >= 0 and last.end_phy_offset <= segment.phy_offset
        return is_usual and segment.end_phy_offset - first.phy_offset <= _COVERED_BYTES

    def _find_uncovered(self, segments: list[Segment], spans: list[Span]) -> None:
        """Read segments for messages without an entry."""
        start, end = segments[0].phy_offset, self._kept_end(segments[-1])
        if start < 0:  # no entry points to a negative offset
            for table in self._scan(segments[0], start, end):
                self._add_lost(table, _messages(table), was_cut=False)
            return
        # In a file whose name is no multiple of the segment size, a broker may read a position for an offset after its end.
        read_to = end if self._lookup.is_plain else min(end + self._lookup.size_bytes, paths.LARGEST_OFFSET)
        covered = Covered(start, read_to)
        for span in spans:
            for starts, ends in span.places(read_to):
                covered.add(starts, ends)
        for segment in segments:
            kept_to = self._kept_end(segment)
            for table in self._scan(segment, segment.phy_offset, kept_to):
                offsets = self._lookup.offset_of(segment.phy_offset, table.phy_offset - segment.phy_offset)
                is_reached = (offsets >= start) & (offsets < read_to)
                # 4.x ends the log by the lengths in its records, which can be inside a record, which then has no entry.
                is_reached &= table.phy_offset + table.size_bytes <= kept_to
                is_reached[is_reached] = covered.has(offsets[is_reached], (offsets + table.size_bytes)[is_reached])
                if not self._lookup.is_plain:
                    is_reached &= self._lookup.places(offsets) == self._places[segment]
                self._add_lost(table, _messages(table) & ~is_reached, was_cut=False)

    # -- which count ---------------------------------------------------------------------------------------------

    def _add_lost(self, table: FrameTable, mask: NDArray[np.bool_], *, was_cut: bool) -> None:
        """Add the messages of a mask to the book."""
        rows = np.flatnonzero(mask)
        if not len(rows):
            return
        queues = _queues_of(table, rows, self._number_of)
        rows, queues = rows[queues != _NO_QUEUE], queues[queues != _NO_QUEUE]
        keep = ~self._is_stored_elsewhere(table, rows, queues)
        rows, queues = rows[keep], queues[keep]
        if not was_cut:
            found = runs_of(table, rows, queues)
            keep = np.repeat(~self._are_superseded(table, found), found.counts)
            rows, queues = found.rows[keep], np.repeat(found.queues, found.counts)[keep]
        self._book.add(table, rows, queues)

    def _number_of(self, topic: bytes, queue_id: int) -> int:
        """Return the number of a lost message's queue; ``_NO_QUEUE`` if its topic was deleted, which is no loss."""
        number = self._numbers.get((topic, queue_id))
        if number is None:
            name, topics = decode_text(topic), self._start.loaded.topics
            is_known = not topics or name in topics or name in _SYSTEM_TOPICS
            is_known = is_known or any(known.topic == name for known in self._store.queues)
            is_light = name.startswith(paths.LMQ_PREFIX)  # only tombstones have such a topic
            number = self._new_number(QueueKey(name, queue_id)) if is_known and not is_light else _NO_QUEUE
            self._numbers[topic, queue_id] = number
        return number

    def _new_number(self, key: QueueKey) -> int:
        number = self._book.number_of(key)
        if number < len(self._keys):  # two spellings of a topic decode to the same name
            return number
        self._keys.append(key)
        self._known = with_room(self._known, number + 1)
        queue = self._by_key.get(key)
        if queue is None or isinstance(
            queue, BatchQueueState
        ):  # batch entries are not stored at the position of their queue offset
            self._known[number] = 0, 0, _ANYWHERE.min, _ANYWHERE.max, 0, False
        else:
            self._known[number] = queue.min_offset, queue.max_offset, 0, 0, 0, False
        return number

    def _is_stored_elsewhere(self, table: FrameTable, rows: Ints, queues: Ints) -> NDArray[np.bool_]:
        """Return the mask of records whose message is stored in another record, so that it is not lost:

        * copies of a record that is whole at its own offset
        * records whose queue offset has an entry for another record with the same queue offset
        """
        mask = np.zeros(len(rows), np.bool_)
        places, own = table.phy_offset[rows], table.own_phy_offset[rows]
        for number in np.flatnonzero(own != places).tolist():
            data = self._store.log.read(int(own[number]), int(table.size_bytes[rows[number]]))
            mask[number] = data == bytes(table.record(int(rows[number])))
        numbers, known = table.queue_offset[rows], self._known[queues]
        within = np.flatnonzero(~mask & (numbers >= known["min"]) & (numbers < known["max"]))
        within = within[np.argsort(queues[within], kind="stable")]
        is_start = (np.diff(queues[within]) != 0) | (np.diff(numbers[within]) != 1)
        for part in np.split(within, np.flatnonzero(is_start) + 1) if len(within) else ():
            key = self._keys[queues[part[0]]]
            mask[part] = self._have_other_records(key, table, rows[part])
        return mask

    def _have_other_records(self, key: QueueKey, table: FrameTable, rows: Ints) -> NDArray[np.bool_]:
        """Return the mask of records whose queue offset has an entry for another record with the same queue offset.

        ``rows`` have consecutive queue offsets in the queue ``key``.
        """
        mask = np.zeros(len(rows), np.bool_)
        queue = self._by_key[key]
        first, width = int(table.queue_offset[rows[0]]), queue.entry_size_bytes
        entries = queue.entries(first * width, (first + len(rows)) * width)
        leads_elsewhere = entries["phy_offset"] != table.phy_offset[rows]
        leads_elsewhere &= entries["size_bytes"] >= record.MIN_RECORD_SIZE_BYTES
        for place in np.flatnonzero(leads_elsewhere).tolist():
            mask[place] = self._has_entry_at(key, first + place, *entries[place].tolist()[:2])
        return mask

    def _has_entry_at(self, key: QueueKey, number: int, at: int, size_bytes: int) -> bool:
        """Return True if a whole record is at ``at`` and has the queue offset ``number`` in the queue ``key``."""
        other = read_message(self._store.log, at) if at + size_bytes <= self._end else None
        if other is None or other.own_phy_offset != at or other.size_bytes != size_bytes:
            return False
        return (other.topic, other.queue_id, other.queue_offset) == (*key, number) and body_crc_ok(other)

    def _are_superseded(self, table: FrameTable, found: TableRuns) -> NDArray[np.bool_]:
        """Return the mask of runs of older generations: the queue's next record in the log has no higher queue offset."""
        places, known = table.phy_offset[found.rows[found.starts]], self._known[found.queues]
        is_known = (known["since"] <= places) & (places < known["until"])
        mask: NDArray[np.bool_] = is_known & known["has_next"] & (known["next"] <= found.firsts)
        for run in np.flatnonzero(~is_known).tolist():
            state = self._state_after(int(found.queues[run]), int(places[run]))
            mask[run] = state["has_next"] and state["next"] <= found.firsts[run]
        return mask

    def _state_after(self, number: int, phy_offset: int) -> Any:
        """Return the row of a queue in ``_known``, with its next record after ``phy_offset``."""
        known = self._known[number]
        if not known["since"] <= phy_offset < known["until"]:
            key = self._keys[number]
            self._known[number] = known["min"], known["max"], *self._next_record(key, phy_offset)
        return self._known[number]

    def _next_record(self, key: QueueKey, phy_offset: int) -> tuple[int, int, int, bool]:
        """Return (since, until, queue offset of the next record, True if there is one) of a queue, as in ``_QUEUE``."""
        queue = self._by_key[key]
        since, until, following = _entries_after(queue, phy_offset)
        for at in following:
            if at <= phy_offset:
                since = max(since, at)
                continue
            until = min(until, at)
            message = read_message(self._store.log, at)
            if message is not None and (message.topic, message.queue_id) == key:
                return since, until, message.queue_offset, True
        return since, until, 0, False


def losses_of_range(store: Store, from_phy_offset: int, to_phy_offset: int | None = None) -> LossBook:
    """Return all messages that start in a range of the log, by default up to its end."""
    book = LossBook()
    for table in scan_log(store, from_phy_offset=from_phy_offset, to_phy_offset=to_phy_offset):
        rows = np.flatnonzero(_messages(table))
        queues = _queues_of(table, rows, lambda topic, queue_id: book.number_of(QueueKey(decode_text(topic), queue_id)))
        book.add(table, rows, queues)
    return book


def _queues_of(table: FrameTable, rows: Ints, number_of: Callable[[bytes, int], int]) -> Ints:
    """Return the number of each message's queue; ``number_of`` is called once for each queue."""
    group = (table.topic_id[rows].astype(np.int64) << 32) + table.queue_id[rows]
    _, firsts, places = np.unique(group, return_index=True, return_inverse=True)
    topics, queue_ids = (column[rows[firsts]].tolist() for column in (table.topic_id, table.queue_id))
    pairs = zip(topics, queue_ids, strict=True)
    numbers = np.array([number_of(table.topics[topic], queue_id) for topic, queue_id in pairs], np.int64)
    return numbers[places]


def _messages(table: FrameTable) -> NDArray[np.bool_]:
    kind = table.sys_flag & record.TRANSACTION_MASK
    mask: NDArray[np.bool_] = table.messages & ((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT))
    return mask


def _entries_after(queue: QueueState, phy_offset: int) -> tuple[int, int, list[int]]:
    """Return (since, until, log offsets of a queue's first entries after ``phy_offset``), for entries in log order.

    The result is the same for every log offset in [since, until).
    """
    low, high = queue.min_offset, queue.max_offset
    width = queue.entry_size_bytes
    since, until = _ANYWHERE.min, _ANYWHERE.max
    while low < high:
        middle = (low + high) // 2
        at = int(queue.entries(middle * width, (middle + 1) * width)["phy_offset"][0])
        if at <= phy_offset:
            low, since = middle + 1, max(since, at)
        else:
            high, until = middle, min(until, at)
    stop = min(low + _MOST_LOOKED_AT, queue.max_offset)
    return since, until, queue.entries(low * width, stop * width)["phy_offset"].tolist() if low < stop else []


def _reached_ranges(queue: QueueState) -> Iterator[tuple[int, int]]:
    """Yield the range of each file of a queue that consumers reach, in bytes of the queue.

    There may be holes between files.
    """
    first = _first_position(queue)
    for start, following in pairwise([*queue.starts, queue.end]):
        size = queue.written_in(start) if isinstance(queue, BatchQueueState) else queue.file_size_bytes
        begin, end = max(start, first), min(following, start + size)
        if begin < end:
            yield begin, end


def _first_position(queue: QueueState) -> int:
    return queue.starts[0] if queue.starts and isinstance(queue, BatchQueueState) else queue.min_position


def _entries_between(queue: QueueState, begin: int, end: int) -> Iterator[Entries]:
    step = _CHUNK_BYTES - _CHUNK_BYTES % queue.entry_size_bytes
    for at in range(begin, end, step):
        entries = queue.entries(at, min(at + step, end))
        yield entries[queue.reaches(at, entries)] if queue.hides_entries else entries


def _segments_without_chain(
    store: Store,
    segments: list[Segment],
    end: int,
    queues: list[QueueState],
    spans: list[Span],
) -> list[Segment]:
    """Return the segments whose entries form no chain from the start to the blank or the end of the log.

    All entries that consumers reach are added to ``spans``.
    """
    starts = np.array([s.phy_offset for s in segments], np.int64)
    ends = np.array([min(s.end_phy_offset, end) for s in segments], np.int64)
    sums, last = np.zeros(len(starts), np.uint64), starts.copy()
    for queue in queues:
        for begin, stop in _reached_ranges(queue):
            highest, is_rising = -1, True
            for entries in _entries_between(queue, begin, stop):
                found = chain_sums(entries, starts, ends)
                sums, last = sums + found.sums, np.maximum(last, found.last)
                phy_offsets = np.r_[highest, entries["phy_offset"]]
                is_rising = is_rising and bool((phy_offsets[1:] >= phy_offsets[:-1]).all())
                highest = int(phy_offsets[-1])
            spans.append(Span(queue, begin, stop, is_rising=is_rising))
    is_chain = sums == hashes(starts) - hashes(last)
    return [
        segment
        for number, segment in enumerate(segments)
        if not is_chain[number] or not _records_end_at(store, segment, int(last[number]), int(ends[number]))
    ]


def _records_end_at(store: Store, segment: Segment, at: int, end: int) -> bool:
    """Return True if a segment's records end at ``at``: at the end of the log or segment, or before a blank."""
    if at >= end:
        return at == end
    prefix = store.log.read(at, record.PREFIX.size_bytes)
    if len(prefix) < record.PREFIX.size_bytes:
        return at > segment.end_phy_offset - record.PREFIX.size_bytes
    is_blank = record.PREFIX.read(prefix)["magic"] == record.MAGIC_BLANK
    return bool(is_blank) and not _holds_data(store.log, at + len(prefix), end)


def _holds_data(log: SegmentSequence, start: int, end: int) -> bool:
    """Return True if a range of a file, usually shorter than a record, has a byte that is not zero."""
    if end - start > record.MAX_RECORD_SIZE_BYTES:
        segment = log.find(start)
        return segment is not None and log.used_end(segment.phy_offset) > start
    return bool(log.read(start, end - start).strip(b"\0"))
