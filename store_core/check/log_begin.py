"""Decide whether the records before a log's first byte have expired or are missing (store behaviour 11).

Both leave a log without its first segments, and queue entries that point there. A broker deletes a segment once it is
older than fileReservedTime, and then every queue and index file that points nowhere else. So a younger first record,
and derived files that no broker would have left, are signs of a loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.index_files import open_view
from store_core.findings import Finding, counted, finding
from store_core.layout import paths, queue
from store_core.layout.schema import Layout
from store_core.read.checkpoint import read_checkpoint
from store_core.read.index_sizes import index_sizes
from store_core.read.records import read_store_timestamp_ms
from store_core.storage.config_files import offset_table, read_config
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import QueueKey, Store

MISSING_BEGIN: Final = "L026"  # no command can repair it, and the rest of the store may be sound
_CHUNK_ENTRIES: Final = 1 << 16
_KEPT_HOURS: Final = "72"
_MS_PER_HOUR: Final = 3_600_000
_NS_PER_MS: Final = 1_000_000
_MOST_GROUPS: Final = 5


@dataclass(frozen=True, slots=True)
class QueueBefore:
    """Messages of one queue before the log's first byte: queue offsets [first, end) of its entries.

    ``files_left``: queue files that contain nothing else, and that a broker deletes with the segments.
    """

    key: QueueKey
    first_queue_offset: int
    end_queue_offset: int
    messages: int
    size_bytes: int
    files_left: int


@dataclass(frozen=True, slots=True)
class LogBegin:
    """The traces of the log before its first byte, ``phy_offset``.

    * ``groups``: consumer groups that have not consumed all of it.
    * ``is_young``: at the store's last write, the log's first record was younger than ``kept_hours``, after which
      segments expire.
    * ``files_left``: derived files that a broker deletes with the segments.
    * ``is_after_checkpoint``: the log's first record is newer than the checkpoint.
    * ``is_followed``: queue files up to here are deleted, as a broker does after it has deleted segments.
    """

    phy_offset: int = 0
    queues: tuple[QueueBefore, ...] = ()
    groups: tuple[str, ...] = ()
    is_young: bool = False
    kept_hours: str = _KEPT_HOURS
    files_left: int = 0
    is_after_checkpoint: bool = False
    is_followed: bool = False

    @property
    def messages(self) -> int:
        return sum(queue_before.messages for queue_before in self.queues)

    @property
    def is_missing(self) -> bool:
        """True if the signs point to a loss rather than to expiry."""
        if not self.messages:
            return False
        return bool(self.files_left) or self.is_after_checkpoint or (self.is_young and not self.is_followed)

    def signs(self) -> list[str]:
        """Return the signs of a loss in words."""
        signs = []
        if self.messages:
            signs.append(f"{counted(self.messages, 'queue entry points', 'queue entries point')} there")
        if self.is_young:
            signs.append(f"it was too young to expire after {self.kept_hours} h (fileReservedTime)")
        if self.files_left:
            files = counted(self.files_left, "queue or index file is", "queue or index files are")
            signs.append(f"{files} left that a broker deletes with it")
        if self.is_after_checkpoint:
            signs.append("the checkpoint is older than the first record")
        if self.groups:
            more = f" and {len(self.groups) - _MOST_GROUPS} more" if len(self.groups) > _MOST_GROUPS else ""
            signs.append(f"consumer groups have not got all of it ({', '.join(self.groups[:_MOST_GROUPS])}{more})")
        return signs

    def findings(self) -> Iterator[Finding]:
        """Yield L026 if the log's start is missing."""
        if self.is_missing:
            text = f"the log begins at {self.phy_offset}, and what lay before is missing: {'; '.join(self.signs())}"
            yield finding(MISSING_BEGIN, text, file=paths.COMMITLOG, phy_offset=0, size_bytes=self.phy_offset)


def besides_missing_begin(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out the finding for a missing start of the log, which no repairing command can correct."""
    return (found for found in findings if found.code != MISSING_BEGIN)


def log_begin(
    store: Store, *, begin_phy_offset: int | None = None, last_timestamp_ms: int = 0, live: bool = False
) -> LogBegin:
    """Read the traces in queues, index and checkpoint of the log before its first byte.

    Args:
        begin_phy_offset: where the log will start, if not at its present start.
        last_timestamp_ms: the store time of the last record, as far as the caller knows it.
        live: a broker is running and may be deleting files now.

    Raises:
        FailedError: a file cannot be read.
    """
    begin = store.log.min_phy_offset if begin_phy_offset is None else begin_phy_offset
    if not store.log.segments or begin <= 0:
        return LogBegin()
    queues = tuple(_queues_before(store, begin))
    if not queues:
        return LogBegin(begin)
    hours = store.settings.value("fileReservedTime", _KEPT_HOURS).strip()
    first_ms = _first_timestamp_ms(store, begin)
    checkpoint_ms = read_checkpoint(store.root).physic_msg_timestamp_ms
    written_ms = max(last_timestamp_ms, checkpoint_ms, _written_timestamp_ms(store, last_timestamp_ms, live=live))
    files_left = (
        0 if live else sum(queue_before.files_left for queue_before in queues) + _index_files_left(store, begin)
    )
    return LogBegin(
        begin,
        queues,
        _groups_before(store, {queue_before.key: queue_before.end_queue_offset for queue_before in queues}),
        hours.isdecimal() and first_ms > 0 and written_ms - first_ms < int(hours) * _MS_PER_HOUR,
        hours,
        files_left,
        not live and 0 < checkpoint_ms < first_ms,
        _is_followed(store, begin),
    )


def _queues_before(store: Store, begin: int) -> Iterator[QueueBefore]:
    for key, files in store.queues.items():
        if not key.topic.startswith(paths.LMQ_PREFIX) and (found := _before(key, files, queue.ENTRY, begin)):
            yield found
    for key, files in store.batch_queues.items():
        if found := _before(key, files, queue.BATCH_ENTRY, begin):
            yield found


def _before(key: QueueKey, files: SegmentSequence, layout: Layout, begin: int) -> QueueBefore | None:
    """Count the leading entries of a queue that point before an offset; fillers may be among them."""
    is_batch = layout is queue.BATCH_ENTRY
    messages = size_bytes = files_left = end = 0
    first: int | None = None
    for segment in files.segments:
        is_whole = True
        for at, entries in _chunks(files, segment, layout):
            phy_offsets, sizes = entries["phy_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
            before = (sizes > 0) & (phy_offsets >= 0) & (phy_offsets < begin)
            run = len(entries) if before.all() else int(np.argmin(before))
            real = np.flatnonzero(sizes[:run] != queue.FILLER_SIZE_BYTES)
            if len(real):
                counts = entries["batch_size"][real].astype(np.int64) if is_batch else np.ones(len(real), np.int64)
                numbers = entries["queue_offset"][real] if is_batch else at // layout.size_bytes + real
                first = int(numbers[0]) if first is None else first
                end = int(numbers[-1] + counts[-1])
                messages += int(counts.sum())
                size_bytes += int(sizes[real].sum())
            if run < len(entries):
                is_whole = False
                break
        if not is_whole:
            break
        files_left += segment is not files.segments[-1]
    return None if first is None else QueueBefore(key, first, end, messages, size_bytes, files_left)


def _chunks(files: SegmentSequence, segment: Segment, layout: Layout) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield a queue file's entries and their start: first one entry alone, which usually decides."""
    at, count = segment.phy_offset, 1
    while at < segment.end_phy_offset:
        wanted = min(count * layout.size_bytes, segment.end_phy_offset - at)
        entries = np.frombuffer(files.read(at, wanted), np.uint8)
        entries = entries[: len(entries) - len(entries) % layout.size_bytes].view(layout.dtype)
        if not len(entries):
            return
        yield at, entries
        at, count = at + len(entries) * layout.size_bytes, _CHUNK_ENTRIES


def _index_files_left(store: Store, begin: int) -> int:
    """Count index files, except the newest, whose entries all point before an offset."""
    sizes = index_sizes(store).sizes
    if sizes is None:
        return 0
    views = [open_view(store, path, sizes) for path in store.index_files[:-1]]
    return sum(bool(view.entries) and 0 < view.header.end_phy_offset < begin for view in views)


def _is_followed(store: Store, begin: int) -> bool:
    """Return True if a queue's first files are gone, up to an entry in or after the last missing segment."""
    reached = begin - (store.log.file_size_bytes or 0)
    for files in store.queues.values():
        if files.segments and files.min_phy_offset > 0:
            data = files.read(files.min_phy_offset, queue.ENTRY.size_bytes)
            if len(data) == queue.ENTRY.size_bytes and queue.ENTRY.read(data)["phy_offset"] >= reached:
                return True
    return False


def _groups_before(store: Store, ends: Mapping[QueueKey, int]) -> tuple[str, ...]:
    """Return the groups whose progress is before these queue offsets."""
    progress = offset_table(read_config(store.root))
    return tuple(
        sorted({g for (g, topic, number), at in progress.items() if at < ends.get(QueueKey(topic, number), 0)})
    )


def _first_timestamp_ms(store: Store, begin: int) -> int:
    """Return the store time of the first record that starts a segment; 0 without one."""
    starts = (segment.phy_offset for segment in store.log.segments if segment.phy_offset >= begin)
    return next((ms for at in starts if (ms := read_store_timestamp_ms(store.log, at))), 0)


def _written_timestamp_ms(store: Store, last_timestamp_ms: int, *, live: bool) -> int:
    """Return when a broker last wrote its groups' progress, which it does even without messages; 0 if unknown.

    Files of a copied store have new times. They count only if the time of the log's first file fits its records.
    """
    if live:
        return time.time_ns() // _NS_PER_MS
    segments = store.log.segments
    following = read_store_timestamp_ms(store.log, segments[1].phy_offset) if len(segments) > 1 else last_timestamp_ms
    if not following or abs(segments[0].mtime_ns // _NS_PER_MS - following) > _MS_PER_HOUR:
        return 0
    return _mtime_ms(store.root / paths.CONSUMER_OFFSET_JSON)


def _mtime_ms(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // _NS_PER_MS
    except OSError:
        return 0
