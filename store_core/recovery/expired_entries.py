"""Find the queue and index entries for records before the log's first byte, which stay unchanged (store behaviour 11.2).

A broker deletes whole files only, so queue and index files reach further back than the log. The queue of an idle topic
keeps its last file, and so its queue offsets, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.index_files import IndexFileView, open_view
from store_core.derive.dispatch import Rows
from store_core.derive.index import IndexHeaderState, IndexStart
from store_core.derive.queues import QueueFile
from store_core.layout import index, queue
from store_core.read.index_sizes import IndexSizes
from store_core.storage.digest import Hole
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

_CHUNK_ENTRIES: Final = 1 << 16
_NS_PER_MS: Final = 1_000_000
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ExistingIndex:
    """The part of the index that is for expired records.

    * ``expired``: names of files all of whose records have expired
    * ``start``: the file that reaches the log's first byte, or the newest file, if the index may continue in it
    * ``full_end_timestamp_ms``: end time of the newest full file in ``expired``
    """

    expired: frozenset[str] = frozenset()
    start: IndexStart | None = None
    full_end_timestamp_ms: int = 0


def existing_index(store: Store, sizes: IndexSizes | None, log_min_phy_offset: int) -> ExistingIndex:
    """Return the part of the index that is for expired records; nothing if no whole file starts before the log."""
    if sizes is None:
        return ExistingIndex()
    views = [open_view(store, path, sizes) for path in store.index_files] if log_min_phy_offset else []
    reaching = [
        v for v in views if v.entries and 0 <= v.header.begin_phy_offset < log_min_phy_offset and _is_whole(v, sizes)
    ]
    if not reaching:
        return ExistingIndex()
    last = reaching[-1]
    before = [v for v in reaching[:-1] if v.header.end_phy_offset < log_min_phy_offset]
    full = (v.header.end_timestamp_ms for v in before if v.header.index_count >= sizes.entries)
    expired = frozenset(v.path.name for v in before)
    entries = _expired_entries(store, last, log_min_phy_offset)
    start = _index_start(store, last, entries) if entries else None
    return ExistingIndex(expired, start, max(full, default=0))


def _is_whole(view: IndexFileView, sizes: IndexSizes) -> bool:
    size = index.file_size_bytes(sizes.slots, sizes.entries)
    return view.path.stat().st_size == size and 0 <= view.header.index_count <= sizes.entries


def _expired_entries(store: Store, view: IndexFileView, log_min_phy_offset: int) -> int:
    """Count the entries for expired records at the file's start; 0 if they are not in order."""
    count, before = 0, 0
    for first in range(1, view.entries + 1, _CHUNK_ENTRIES):
        part = view.read(store, first, min(_CHUNK_ENTRIES, view.entries + 1 - first))
        phy_offset = part["phy_offset"].astype(np.int64)
        expired = phy_offset < log_min_phy_offset
        run = len(part) if expired.all() else int(np.argmin(expired))
        ordered = np.diff(phy_offset[:run], prepend=before) >= 0
        if not ordered.all() or (part["key_hash"][:run] < 0).any():
            return 0
        count += run
        if run < len(part):
            break
        before = int(phy_offset[-1])
    return count


def _index_start(store: Store, view: IndexFileView, entries: int) -> IndexStart:
    header = IndexHeaderState(*view.header)
    return IndexStart(header, entries, lambda first, count: view.read(store, first, count).copy())


def expired_queue_files(files: SegmentSequence, log_min_phy_offset: int, *, batch: bool = False) -> Iterator[QueueFile]:
    """Yield the last adjoining files of a queue without a message in the log, with zeros after its entries; none if no record has expired."""
    size = files.file_size_bytes
    joined, end = _expired_segments(files, log_min_phy_offset, batch=batch)
    for segment in joined:
        if segment.phy_offset < end:
            yield QueueFile(
                segment.name,
                size,
                segment.mtime_ns // _NS_PER_MS,
                partial(_content, files, segment, min(end, segment.phy_offset + size), size),
                min(end - segment.phy_offset, size),
            )


def queue_end(files: SegmentSequence, log_min_phy_offset: int, *, batch: bool = False) -> int:
    """Return the queue offset after the last entry for an expired record; 0 without one."""
    _, end = _expired_segments(files, log_min_phy_offset, batch=batch)
    if not batch:
        return end // queue.ENTRY.size_bytes
    last = files.read(end - queue.BATCH_ENTRY.size_bytes, queue.BATCH_ENTRY.size_bytes) if end else b""
    if len(last) < queue.BATCH_ENTRY.size_bytes:
        return 0
    entry = queue.BATCH_ENTRY.read(last)
    return int(entry["queue_offset"] + entry["batch_size"])


def last_number(chunks: Iterable[Rows]) -> int:
    """Return the queue offset after the last of a batch queue's rows."""
    end = 0
    for rows in chunks:
        end = int(rows["queue_offset"][-1] + rows["batch_size"][-1])
    return end


def _expired_segments(files: SegmentSequence, log_min_phy_offset: int, *, batch: bool) -> tuple[list[Segment], int]:
    """Return the last adjoining files that start with entries for expired records, and the end of these entries in bytes.

    The end is 0 if there are none.
    """
    layout = queue.BATCH_ENTRY if batch else queue.ENTRY
    found: tuple[list[Segment], int] = [], 0
    joined: list[Segment] = []
    is_open = True
    for segment in files.segments if log_min_phy_offset else ():
        if not joined or joined[-1].phy_offset + files.file_size_bytes != segment.phy_offset:
            joined, is_open = [], True
        if not is_open:
            continue
        joined.append(segment)
        end = _expired_until(files, segment, layout.dtype, log_min_phy_offset)
        if end > segment.phy_offset:
            found = list(joined), end
        is_open = end == segment.phy_offset + files.file_size_bytes
    return found


def _expired_until(files: SegmentSequence, segment: Segment, dtype: np.dtype[Any], log_min_phy_offset: int) -> int:
    """Return the position after the entries for expired records at a file's start; filler entries may be among them."""
    at, end = segment.phy_offset, segment.phy_offset
    while at < segment.end_phy_offset:
        data = files.read(at, _CHUNK_ENTRIES * dtype.itemsize)
        entries = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        expired = (entries["size_bytes"] > 0) & (entries["phy_offset"] >= 0)
        expired &= entries["phy_offset"] < log_min_phy_offset
        run = len(entries) if expired.all() else int(np.argmin(expired))
        real = np.flatnonzero(entries["size_bytes"][:run] != queue.FILLER_SIZE_BYTES)
        if len(real):
            end = at + (int(real[-1]) + 1) * dtype.itemsize
        if run < len(entries) or not run:
            break
        at += run * dtype.itemsize
    return end


def _content(files: SegmentSequence, segment: Segment, end: int, size_bytes: int) -> Iterator[bytes | Hole]:
    at, stop = segment.phy_offset, segment.phy_offset + size_bytes
    while at < end:
        data = files.read(at, min(_CHUNK_ENTRIES, end - at))
        if not data:
            break
        yield data
        at += len(data)
    if at < stop:
        yield Hole(stop - at)
