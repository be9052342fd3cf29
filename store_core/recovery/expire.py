"""Plan to remove the oldest segments as a broker's expiry does, with the queue and index files that lead to them alone (command expire).

A broker removes whole files, oldest first and never the last one (store behaviour 11.1, 11.2). Its own times decide, so the
modification times of segments do here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from store_core.check.log_begin import log_begin
from store_core.errors import UsageError
from store_core.layout import queue as layout
from store_core.layout.schema import Layout
from store_core.read.index import read_header
from store_core.read.log_files import refuse_missing_log
from store_core.recovery.guards import refuse_foreign_store
from store_core.recovery.keep_steps import outside_roots
from store_core.recovery.log_edits import EditedLog
from store_core.recovery.losses import Losses, Planned
from store_core.recovery.plans.draft import Draft
from store_core.recovery.prediction.predict import predict, store_after_plan
from store_core.recovery.prediction.start_loss import losses_of_range
from store_core.scan.log import Progress
from store_core.scan.walk_progress import WalkProgress
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

DEFAULT_HOURS: Final = "72"
_NS_PER_HOUR: Final = 3_600_000_000_000
_CHUNK_ENTRIES: Final = 1 << 16


def reserved_hours(store: Store) -> int:
    """Return how long a broker keeps a segment: ``fileReservedTime`` of the broker's configuration. Raises UsageError."""
    text = store.settings.value("fileReservedTime", DEFAULT_HOURS).strip()
    if not text.isdecimal():
        raise UsageError(f"fileReservedTime is {text!r}", to_do="give --older-than")
    return int(text)


def expire(
    store: Store,
    *,
    hours: int | None = None,
    free_bytes: int = 0,
    now_ns: int | None = None,
    on_progress: Progress | None = None,
) -> Planned:
    """Plan the removal of segments written last at least ``hours`` ago, or of as many as hold ``free_bytes``.

    Args:
        hours: the age of a segment that is due; ``fileReservedTime`` by default.
        free_bytes: remove segments that are not due, too, until the removed ones hold this many bytes.
        now_ns: the time that ages are counted from; now by default.
        on_progress: gets the bytes walked so far: the removed segments, then the kept log.

    Raises:
        UsageError: the store is not one that rmqctl may change, or its fileReservedTime is no number.
        FailedError: the log is missing, or a file cannot be read.
    """
    refuse_foreign_store(store)
    refuse_missing_log(store)
    age_ns = (reserved_hours(store) if hours is None else hours) * _NS_PER_HOUR
    expired = _expired(store.log, (time.time_ns() if now_ns is None else now_ns) - age_ns, free_bytes)
    min_phy_offset = store.log.segments[len(expired)].phy_offset if expired else store.log.min_phy_offset
    draft = Draft(store.root, writable_roots=outside_roots(store))
    for segment in expired:
        draft.remove_file(segment.path, why="expired")
    followers = [*_queue_files(store, min_phy_offset), *_index_files(store, min_phy_offset)] if expired else []
    for path in followers:
        draft.remove_file(path, why="all its records have expired")
    if len(draft):
        draft.depend_on_the_rest(*store.settings.outside_paths)
    book = losses_of_range(store, store.log.min_phy_offset, min_phy_offset)
    walks = WalkProgress(on_progress, store.log.max_phy_offset - min_phy_offset)
    edited = EditedLog(store.log, list(store.log.segments[len(expired) :]), removed=list(expired))
    with store_after_plan(store, edited, removed=[store.relative(path) for path in followers]) as shadow:
        after = predict(shadow, on_progress=walks.next()).outcome
    losses = Losses(
        unreadable_messages=book.messages - book.readable.messages,
        given_up_messages=book.readable.messages,
        before_begin=log_begin(store),
    )
    return Planned(draft.plan("expire"), after, (), book.runs(), losses=losses)


def _expired(log: SegmentSequence, written_until_ns: int, free_bytes: int) -> list[Segment]:
    """Return the segments to remove: the first ones, up to the first that is not due; never the last one with records."""
    found: list[Segment] = []
    freed = 0
    used = [number for number, s in enumerate(log.segments) if log.used_end(s.phy_offset) > s.phy_offset]
    for segment in log.segments[: used[-1] if used else 0]:
        if segment.mtime_ns > written_until_ns and freed >= free_bytes:
            break
        found.append(segment)
        freed += segment.size_bytes
    return found


def _queue_files(store: Store, min_phy_offset: int) -> Iterator[Path]:
    """Yield the queue files without an entry for a record of the kept log, up to the first that has one, of each queue."""
    for queues, entry in ((store.queues, layout.ENTRY), (store.batch_queues, layout.BATCH_ENTRY)):
        for files in queues.values():
            for segment in files.segments[:-1]:
                if _last_phy_offset(files, segment, entry) >= min_phy_offset:
                    break
                yield segment.path


def _last_phy_offset(files: SegmentSequence, segment: Segment, entry: Layout) -> int:
    """Return the highest phy_offset of a queue file's entries; that of its last entry, where none is damaged."""
    highest = -1
    for at in range(segment.phy_offset, segment.end_phy_offset, _CHUNK_ENTRIES * entry.size_bytes):
        data = files.holding(segment).read(at, _CHUNK_ENTRIES * entry.size_bytes)
        entries = np.frombuffer(data, entry.dtype, count=len(data) // entry.size_bytes)
        if len(entries):
            highest = max(highest, int(entries["phy_offset"].max()))
    return highest


def _index_files(store: Store, min_phy_offset: int) -> Iterator[Path]:
    """Yield the index files whose last record has expired, up to the first that has another; never the last one."""
    for path in store.index_files[:-1]:
        if read_header(path).end_phy_offset >= min_phy_offset:
            break
        yield path
