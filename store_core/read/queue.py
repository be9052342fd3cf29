"""Read a queue as a broker does: its start, its end and its entries (store format 6; store behaviour 2 and 11.3)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

from store_core.layout import queue as layout
from store_core.layout.schema import Layout
from store_core.read.entries import BatchEntry, Entry, ExtUnit, good_entries, is_dead, is_filler
from store_core.read.rules import RULES_5, ReadRules
from store_core.storage.remote_path import is_there
from store_core.storage.sequence import Segment, SegmentSequence

ENTRY_SIZE_BYTES: Final = layout.ENTRY.size_bytes
_FILES_RECOVERED: Final = 3  # a broker checks the newest three files at start and trusts the others
_FEW_ENTRIES, _CHUNK_ENTRIES = 1 << 8, 1 << 15  # read at first, and at most: most light queues have few entries
_KEPT_ENTRIES: Final = 256
_NEAR: Final = 64  # entries that are tried in turn where one points to no record
_unpack: Final = layout.ENTRY.struct.unpack_from
_iter_unpack: Final = layout.ENTRY.struct.iter_unpack


def end_of_entries(files: SegmentSequence, entry: Layout) -> int:
    """Return the queue's end after a broker's recovery, as a byte offset of the sequence (store behaviour, section 2).

    From the third-last file on, the first bad entry ends the queue, even if more files follow.
    """
    end = 0
    for segment in files.segments[-_FILES_RECOVERED:]:
        end = _good_end(files, segment, entry, segment.phy_offset)
        if end + entry.size_bytes <= segment.end_phy_offset and (
            end > segment.phy_offset or not _has_gone(files, segment)
        ):
            return end
    return end


def _has_gone(files: SegmentSequence, segment: Segment) -> bool:
    """Return True if a file was removed since it was listed; it is then skipped as if it had never existed."""
    return files.is_plain(segment) and not is_there(segment.path)


def end_of_run(files: SegmentSequence, entry: Layout, at: int) -> int:
    """Return the byte offset at which the run of good entries from ``at`` on ends, across files."""
    for segment in files.segments:
        if segment.end_phy_offset > at:
            at = _good_end(files, segment, entry, max(at, segment.phy_offset))
            if at + entry.size_bytes <= segment.end_phy_offset:
                break
    return at


def _good_end(files: SegmentSequence, segment: Segment, entry: Layout, at: int) -> int:
    """Return the byte offset at which a file's run of good entries from ``at`` on ends."""
    chunk = _FEW_ENTRIES
    while at + entry.size_bytes <= segment.end_phy_offset:
        buffer = files.read(at, chunk * entry.size_bytes)
        chunk = min(chunk * 16, _CHUNK_ENTRIES)
        good = good_entries(buffer, entry) * entry.size_bytes
        at += good
        if good < len(buffer) or not buffer:
            break
    return at


class Queue:
    """Entries of an ordinary queue (20 bytes each), by queue offset. Opening reads nothing.

    ``min_offset`` and ``max_offset`` are a broker's answers after a start on these files. Entries after ``max_offset`` are left-overs, and entries
    before ``min_offset`` point before the log's first byte.
    """

    def __init__(
        self,
        files: SegmentSequence,
        log: SegmentSequence,
        *,
        ext: SegmentSequence | None = None,
        rules: ReadRules = RULES_5,
    ) -> None:
        self.files = files
        self.log = log
        self.ext = ext
        self.rules = rules
        self._kept = 0, b""

    @cached_property
    def max_offset(self) -> int:
        """The queue offset of the next message."""
        return end_of_entries(self.files, layout.ENTRY) // ENTRY_SIZE_BYTES

    @property
    def end_slot(self) -> int:
        """The end as a place, as in ``BatchQueue``; here an entry's place is its queue offset."""
        return self.max_offset

    @cached_property
    def min_offset(self) -> int:
        """The first queue offset that a consumer can read (store behaviour 11.3)."""
        if not self.files.segments:
            return 0
        first = self.files.segments[0]
        written = min(first.end_phy_offset // ENTRY_SIZE_BYTES, self.max_offset)
        start = first.phy_offset // ENTRY_SIZE_BYTES
        if self.rules.searches_min:
            return self._searched_min(start, written)
        return next((e.queue_offset for e in self.entries(start, written) if e.phy_offset >= self._log_min), 0)

    @property
    def _log_min(self) -> int:
        return self.log.min_phy_offset

    def _searched_min(self, start: int, written: int) -> int:
        """Return the min of 5.x: checks on both ends of the queue, then a binary search in its first file."""
        last = self.entry(self.max_offset - 1)
        if last is not None and last.phy_offset < self._log_min:
            return self.max_offset  # everything has expired; the numbering is kept
        first = self.entry(start)
        if first is None or start >= written:
            return 0
        if start == 0 and first.phy_offset >= self._log_min:
            return 0
        low, high = start, written - 1
        while high - low > 1:
            middle = (low + high) // 2
            found = self.entry(middle)
            if found is None:
                return 0
            if found.phy_offset == self._log_min:
                low = high = middle
            elif found.phy_offset > self._log_min:
                high = middle
            else:
                low = middle
        return next((e.queue_offset for e in self.entries(low, high + 1) if e.phy_offset >= self._log_min), 0)

    def entry(self, queue_offset: int) -> Entry | None:
        """Return the entry at a queue offset as stored; None where there is no file for it."""
        if queue_offset < 0:
            return None
        data = self.files.read(queue_offset * ENTRY_SIZE_BYTES, ENTRY_SIZE_BYTES)
        return Entry(queue_offset, *_unpack(data)) if len(data) == ENTRY_SIZE_BYTES else None

    def stored(self, first: int, count: int) -> bytes:
        """Return the bytes of up to ``count`` entries from ``first`` on: fewer where a file ends or ``count`` is large, none without a file.

        For a small ``count`` the entries that follow are read too and kept: entries below ``max_offset`` do not change.
        """
        kept_first, kept = self._kept
        at, size_bytes = (first - kept_first) * ENTRY_SIZE_BYTES, count * ENTRY_SIZE_BYTES
        if at >= 0 and at + size_bytes <= len(kept):
            return kept[at : at + size_bytes]
        if count >= _KEPT_ENTRIES:
            return self.files.read(first * ENTRY_SIZE_BYTES, min(count, _CHUNK_ENTRIES) * ENTRY_SIZE_BYTES)
        data = self.files.read(first * ENTRY_SIZE_BYTES, _KEPT_ENTRIES * ENTRY_SIZE_BYTES)
        self._kept = first, data
        return data[:size_bytes]

    def entries(self, first: int, end: int) -> Iterator[Entry]:
        """Yield the entries of [first, end) as stored, in order; places without a file are left out."""
        for at, data in self.chunks(first, end):
            for number, fields in enumerate(_iter_unpack(data), at):
                yield Entry(number, *fields)

    def chunks(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the entries in chunks: (queue offset of the first, whole entries as stored)."""
        at = max(first, 0)
        while at < end:
            data = self.stored(at, end - at)
            whole = len(data) // ENTRY_SIZE_BYTES
            if not whole:
                following = self.next_file_offset(at)
                if following is None:
                    return
                at = following
                continue
            yield at, data[: whole * ENTRY_SIZE_BYTES]
            at += whole

    def next_file_offset(self, queue_offset: int) -> int | None:
        """Return the first queue offset of the first file that starts after a queue offset; None if there is none."""
        position = queue_offset * ENTRY_SIZE_BYTES
        # Rounded up: a file's name may be an offset inside an entry, and a walk must not stop there.
        following = (-(-s.phy_offset // ENTRY_SIZE_BYTES) for s in self.files.segments if s.phy_offset > position)
        return next(following, None)

    def ext_of(self, tags_code: int) -> ExtUnit | None:
        """Return the ConsumeQueueExt unit at the address in a tags code; None if it is no address, or there is no good unit."""
        return read_ext_unit(self.ext, tags_code) if self.ext is not None else None


class BatchQueue:
    """Entries of a batch queue (46 bytes each). An entry's place is not its queue offset, so entries are searched.

    ``min_offset`` and ``max_offset`` count messages, as a broker does.
    """

    def __init__(self, files: SegmentSequence, log: SegmentSequence) -> None:
        self.files = files
        self.log = log

    @cached_property
    def _first_slot(self) -> int:
        return self.files.min_phy_offset // layout.BATCH_ENTRY.size_bytes

    @cached_property
    def end_slot(self) -> int:
        """Number of the place after the last good entry."""
        return end_of_entries(self.files, layout.BATCH_ENTRY) // layout.BATCH_ENTRY.size_bytes

    def written_slots(self) -> list[range]:
        """Return the places of the good entries, a range for each file."""
        size = layout.BATCH_ENTRY.size_bytes
        files = (range(s.phy_offset // size, min(s.end_phy_offset // size, self.end_slot)) for s in self.files.segments)
        return [file for file in files if file]

    @cached_property
    def max_offset(self) -> int:
        """The queue offset of the next message."""
        last = self.at_slot(self.end_slot - 1)
        return 0 if last is None else last.queue_offset + last.batch_size

    @cached_property
    def min_offset(self) -> int:
        """The queue offset of the first entry in the first file whose record the log still has, else that file's end."""
        first_file = next(iter(self.written_slots()), None)
        if first_file is None:
            return 0
        kept = bisect_left(first_file, self.log.min_phy_offset, key=self._phy_offset)
        if kept < len(first_file):
            found = self.at_slot(first_file[kept])
            return 0 if found is None else found.queue_offset
        last = self.at_slot(first_file[-1])
        return 0 if last is None else last.queue_offset + last.batch_size

    def _phy_offset(self, slot: int) -> int:
        found = self.at_slot(slot)
        return -1 if found is None else found.phy_offset

    def at_slot(self, slot: int) -> BatchEntry | None:
        """Return the entry at a place; None where there is no file for it."""
        size = layout.BATCH_ENTRY.size_bytes
        data = self.files.read(slot * size, size) if slot >= 0 else b""
        return _batch_entry(layout.BATCH_ENTRY.struct.unpack(data)) if len(data) == size else None

    def slot_of(self, queue_offset: int) -> int:
        """Return the place of the entry that holds a queue offset, or of the first entry after it."""
        low, high = self._first_slot, self.end_slot
        while low < high:
            middle = (low + high) // 2
            found = self.at_slot(middle)
            if found is None or found.queue_offset + found.batch_size <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def entries(self, first: int, end: int) -> Iterator[BatchEntry]:
        """Yield the entries that hold any queue offset of [first, end), in order."""
        return (found for _, found in self.placed(self.slot_of(first), end))

    def placed(self, first_slot: int, end: int) -> Iterator[tuple[int, BatchEntry]]:
        """Yield the entries from a place on, with their places, until one starts at or after queue offset ``end``."""
        for slot in range(first_slot, self.end_slot):
            found = self.at_slot(slot)
            if found is None:
                continue
            if found.queue_offset >= end:
                return
            yield slot, found


def entries_after(queue: Queue, phy_offset: int) -> Iterator[Entry]:
    """Yield the entries of records at or after an offset in the log, in order; a binary search skips the earlier ones."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        near = queue.entries(middle, min(middle + _NEAR, high))
        record_phy_offset = next((entry.phy_offset for entry in near if _points_to_record(queue, entry)), None)
        if record_phy_offset is not None and record_phy_offset < phy_offset:
            low = middle + 1
        else:
            high = middle
    for entry in queue.entries(low, queue.max_offset):
        if entry.phy_offset >= phy_offset and _points_to_record(queue, entry):
            yield entry


def _points_to_record(queue: Queue, entry: Entry) -> bool:
    return not is_filler(entry) and not is_dead(entry, queue.log.file_size_bytes)


def layout_of(queue: Queue | BatchQueue) -> Layout:
    """Return the layout of a queue's entries."""
    return layout.ENTRY if isinstance(queue, Queue) else layout.BATCH_ENTRY


def _batch_entry(fields: tuple[Any, ...]) -> BatchEntry:
    return BatchEntry(fields[4], fields[0], fields[1], fields[2], fields[3], fields[5])


def read_ext_unit(ext: SegmentSequence, tags_code: int) -> ExtUnit | None:
    """Return the unit at the address in a tags code (store format 6.5); None if it is no address or there is no good unit."""
    if not layout.is_ext_address(tags_code):
        return None
    head_size = layout.EXT_UNIT.size_bytes
    head = ext.read(layout.ext_offset(tags_code), head_size)
    if len(head) < head_size:
        return None
    size, real_tags_code, store_timestamp_ms, bitmap_length = layout.EXT_UNIT.struct.unpack(head)
    bitmap_length = max(bitmap_length, 0)
    if size != head_size + bitmap_length:
        return None
    bitmap = ext.read(layout.ext_offset(tags_code) + head_size, bitmap_length)
    return ExtUnit(real_tags_code, store_timestamp_ms, bitmap) if len(bitmap) == bitmap_length else None
