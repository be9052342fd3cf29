"""Append to queue files: entries of 20 and of 46 bytes, and ConsumeQueueExt units (store behaviour 7; store format 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from store_core.engine.files import LiveFiles
from store_core.engine.tail import RECOVER_FIRST, is_zero
from store_core.errors import FailedError
from store_core.layout import paths, queue
from store_core.read.queue import BatchQueue, Queue, end_of_entries
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_FILLER: Final = queue.ENTRY.struct.pack(queue.FILLER_PHY_OFFSET, queue.FILLER_SIZE_BYTES, queue.FILLER_TAGS_CODE)
_COMPACTED_OFFSET: Final = -1
_UNIT_SIZE: Final = queue.EXT_UNIT.field_struct("size_bytes")


class NewEntry(NamedTuple):
    """The fields of a record that a queue needs."""

    queue_offset: int
    phy_offset: int
    size_bytes: int
    tags_code: int
    store_timestamp_ms: int


class QueueWriter(Protocol):
    """The growing end of a queue. ``next_queue_offset`` is that of the next message to dispatch."""

    next_queue_offset: int

    def append(self, entries: Sequence[NewEntry]) -> None:
        """Add the entries of messages with consecutive queue offsets from the next one on. Raises OSError."""


class _FileEnd:
    """The files of a queue, written from a byte position on; a file is made when its first byte is written."""

    def __init__(self, files: LiveFiles, folder: str, existing: SegmentSequence | None, size_bytes: int) -> None:
        files.assert_place(folder)
        self._files = files
        self._folder = folder
        self._starts = {s.phy_offset for s in existing.segments} if existing is not None else set()
        self.file_size_bytes = size_bytes

    @property
    def is_empty(self) -> bool:
        return not self._starts

    def write(self, position: int, data: bytes, filler: bytes = b"") -> None:
        """Write whole entries from a position on, over the ends of files.

        In a file that this makes, ``filler`` is repeated from the file's start to the position.
        """
        view = memoryview(data)
        while view:
            room = self.file_size_bytes - position % self.file_size_bytes
            self._write_in_file(position, view[:room], filler)
            position, view, filler = position + room, view[room:], b""

    def _write_in_file(self, position: int, data: memoryview, filler: bytes) -> None:
        start = position - position % self.file_size_bytes
        path = f"{self._folder}/{paths.segment_name(start)}"
        if start not in self._starts:
            front = filler * ((position - start) // len(filler)) if filler else b""
            self._files.make_file(path, self.file_size_bytes, front)
            self._starts.add(start)
        self._files.write(path, position - start, data)


class PlainQueueWriter:
    """The writer of an ordinary queue: entry k is at place k. ``ext`` stores the tags codes if the store has ConsumeQueueExt."""

    def __init__(self, store: Store, files: LiveFiles, key: QueueKey, ext: ExtWriter | None) -> None:
        existing = store.queues.get(key)
        size = _file_size(existing, store, store.settings.queue_file_size_bytes, queue.DEFAULT_FILE_SIZE_BYTES)
        self._end = _FileEnd(files, f"{paths.CONSUMEQUEUE}/{key.topic}/{key.queue_id}", existing, size)
        self._ext = ext
        self.next_queue_offset = Queue(existing, store.log).max_offset if existing is not None else 0
        if existing is not None:
            _refuse_leftovers(existing, self.next_queue_offset * queue.ENTRY.size_bytes)

    def append(self, entries: Sequence[NewEntry]) -> None:
        """Write the entries. In an empty queue the places before them get fillers (6.3)."""
        pack, ext = queue.ENTRY.struct.pack, self._ext
        data = b"".join(
            pack(
                entry.phy_offset,
                entry.size_bytes,
                entry.tags_code if ext is None else ext.append(entry.tags_code, entry.store_timestamp_ms),
            )
            for entry in entries
        )
        filler = _FILLER if self._end.is_empty else b""
        self._end.write(entries[0].queue_offset * queue.ENTRY.size_bytes, data, filler)
        self.next_queue_offset = entries[-1].queue_offset + 1


class BatchQueueWriter:
    """The writer of a batch queue, whose entries are consecutive whatever their queue offsets (6.6)."""

    def __init__(self, store: Store, files: LiveFiles, key: QueueKey) -> None:
        existing = store.batch_queues.get(key)
        configured = store.settings.batch_queue_file_size_bytes
        size = _file_size(existing, store, configured, queue.DEFAULT_BATCH_FILE_SIZE_BYTES, batch=True)
        self._end = _FileEnd(files, f"{paths.BATCHCONSUMEQUEUE}/{key.topic}/{key.queue_id}", existing, size)
        self._position = end_of_entries(existing, queue.BATCH_ENTRY) if existing is not None else 0
        self.next_queue_offset = BatchQueue(existing, store.log).max_offset if existing is not None else 0
        if existing is not None:
            _refuse_leftovers(existing, self._position)

    def append(self, entries: Sequence[NewEntry]) -> None:
        data = b"".join(
            queue.BATCH_ENTRY.struct.pack(
                entry.phy_offset,
                entry.size_bytes,
                entry.tags_code,
                entry.store_timestamp_ms,
                entry.queue_offset,
                1,
                _COMPACTED_OFFSET,
                0,
            )
            for entry in entries
        )
        self._end.write(self._position, data)
        self._position += len(data)
        self.next_queue_offset = entries[-1].queue_offset + 1


class ExtWriter:
    """The writer of a queue's ConsumeQueueExt files; units have no bitmaps (6.5)."""

    def __init__(self, store: Store, files: LiveFiles, key: QueueKey) -> None:
        existing = store.ext_queues.get(key)
        sizes = [s.file_size_bytes for s in store.ext_queues.values() if s.file_size_bytes]
        size = store.settings.ext_file_size_bytes or next(iter(sizes), queue.DEFAULT_EXT_FILE_SIZE_BYTES)
        self._end = _FileEnd(files, f"{paths.CONSUMEQUEUE_EXT}/{key.topic}/{key.queue_id}", existing, size)
        self._position = _end_of_units(existing) if existing is not None else 0

    def append(self, tags_code: int, store_timestamp_ms: int) -> int:
        """Write a unit; return its address, which the queue entry has instead of the tags code."""
        size = queue.EXT_UNIT.size_bytes
        available = self._end.file_size_bytes - self._position % self._end.file_size_bytes
        if size + queue.EXT_END_BLANK_SIZE_BYTES > available:
            self._end.write(self._position, _UNIT_SIZE.pack(queue.EXT_END_OF_FILE))
            self._position += available
        at = self._position
        self._end.write(at, queue.EXT_UNIT.struct.pack(size, tags_code, store_timestamp_ms, 0))
        self._position += size
        return at + queue.EXT_ADDRESS_BASE


def open_queue_writer(store: Store, files: LiveFiles, key: QueueKey, *, batch: bool) -> QueueWriter:
    """Return the writer of an existing or a new queue. Raises FailedError where its end is in doubt."""
    if batch:
        return BatchQueueWriter(store, files, key)
    has_ext = bool(store.ext_queues) or store.settings.flag("enableConsumeQueueExt")
    return PlainQueueWriter(store, files, key, ExtWriter(store, files, key) if has_ext else None)


def _end_of_units(files: SegmentSequence) -> int:
    """Return the place of the next unit: after the last one of the newest file."""
    if not files.segments:
        return 0
    segment = files.segments[-1]
    at = segment.phy_offset
    while at + queue.EXT_UNIT.size_bytes <= segment.end_phy_offset:
        (size,) = _UNIT_SIZE.unpack(files.read(at, _UNIT_SIZE.size))
        if size == queue.EXT_END_OF_FILE:
            return segment.end_phy_offset
        if size < queue.EXT_UNIT.size_bytes:
            break
        at += size
    return at


def _file_size(
    existing: SegmentSequence | None, store: Store, configured: int | None, default: int, *, batch: bool = False
) -> int:
    """Return the file size of a queue, for a new one that of other queues: all queues of a kind have the same."""
    if existing is not None and existing.file_size_bytes:
        return existing.file_size_bytes
    others = (store.batch_queues if batch else store.queues).values()
    return configured or next((s.file_size_bytes for s in others if s.file_size_bytes), default)


def _refuse_leftovers(files: SegmentSequence, end: int) -> None:
    """Raise FailedError for old entries after the end, which would become valid after a new one."""
    for segment in files.segments:
        start = max(segment.phy_offset, end)
        if start < segment.end_phy_offset and not is_zero(files, start, segment.end_phy_offset):
            raise FailedError(
                "there are old entries after the end of the queue", path=str(segment.path), to_do=RECOVER_FIRST
            )
