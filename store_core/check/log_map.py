"""Keep the facts of a walk over the log that later checks need."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from store_core.check.report import Findings
from store_core.check.runs import OffsetRanges
from store_core.codec.times import format_time
from store_core.kernel.codes import FrameKind
from store_core.scan.frames import FrameTable, filler_rows, tombstone_rows
from store_core.storage.store import Store


@dataclass(slots=True)
class LogMap:
    """Start and end of the log, the ranges without records, and the last record.

    ``not_records`` are damaged, zero, stale and missing ranges; ``end_phy_offset`` is the end of the last record.
    """

    min_phy_offset: int = 0
    end_phy_offset: int = 0
    last_phy_offset: int = 0
    first_store_timestamp_ms: int = 0
    last_store_timestamp_ms: int = 0
    largest_store_timestamp_ms: int = 0
    messages: int = 0
    not_records: OffsetRanges = field(default_factory=OffsetRanges)

    def add(self, table: FrameTable) -> None:
        stored = table.store_timestamp_ms
        if table.is_good:
            first, last, count, newest = 0, len(table) - 1, len(table), stored
        else:
            messages = table.messages
            begins = table.phy_offset[~messages]
            self.not_records.add_all(begins, begins + table.size_bytes[~messages])
            rows = np.flatnonzero(messages)
            if not len(rows):
                return
            first, last, count, newest = int(rows[0]), int(rows[-1]), len(rows), stored[rows]
        if not self.messages:
            self.first_store_timestamp_ms = int(stored[first])
        self.messages += count
        self.last_phy_offset = int(table.phy_offset[last])
        self.end_phy_offset = self.last_phy_offset + int(table.size_bytes[last])
        self.last_store_timestamp_ms = int(stored[last])
        self.largest_store_timestamp_ms = max(self.largest_store_timestamp_ms, int(newest.max()))

    def from_offset(self, min_phy_offset: int) -> LogMap:
        """Return the map of the log after its records before an offset have expired."""
        return replace(self, min_phy_offset=max(min_phy_offset, self.min_phy_offset))


def check_marks(store: Store, table: FrameTable, findings: Findings) -> None:
    """Report marks that only the walk shows.

    * fillers and tombstones that rmqctl left, by their exact shape (L015, L016)
    * segments that were never used (L014)
    * records without a store time (L019)
    * records that reach the very end of a segment (L008)
    """
    for row in filler_rows(table):
        _report(store, table, row, findings, "L015", "a filler closes a hole here")
    for row in tombstone_rows(table):
        _report(store, table, row, findings, "L016", "a tombstone stands for a lost message")
    for row in np.flatnonzero(table.messages & (table.store_timestamp_ms <= 0)).tolist():
        timestamp_ms = int(table.store_timestamp_ms[row])
        _report(store, table, row, findings, "L019", f"the store time is {timestamp_ms}, {format_time(timestamp_ms)}")
    if size := store.log.file_size_bytes:
        for row in np.flatnonzero(table.messages & ((table.phy_offset + table.size_bytes) % size == 0)).tolist():
            _report(store, table, row, findings, "L008", "the record leaves no room for the segment's blank")
    if table.is_good:
        return
    for row in np.flatnonzero(table.of_kind(FrameKind.ZEROS)).tolist():
        segment = store.log.find(int(table.phy_offset[row]))
        if segment is not None and segment.phy_offset == table.phy_offset[row]:
            size = int(table.size_bytes[row])
            if size >= segment.size_bytes > 0:
                findings.say(
                    "L014",
                    "the segment holds only zeros",
                    file=store.relative(segment.path),
                    phy_offset=segment.phy_offset,
                    size_bytes=segment.size_bytes,
                )


def _report(store: Store, table: FrameTable, row: int, findings: Findings, code: str, message: str) -> None:
    if findings.is_full(code):
        findings.counts[code] += 1
        return
    phy_offset = int(table.phy_offset[row])
    segment = store.log.find(phy_offset)
    is_filler = code == "L015"
    findings.say(
        code,
        message,
        file=store.relative(segment.path) if segment is not None else None,
        phy_offset=phy_offset,
        size_bytes=int(table.size_bytes[row]),
        topic=None if is_filler else table.topic(row).decode("utf-8", "replace"),
        queue_id=None if is_filler else int(table.queue_id[row]),
        queue_offset=None if is_filler else int(table.queue_offset[row]),
    )
