"""Rows of the log: messages by offset or time range, and on request what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from store_core.codec.record import Message
from store_core.codec.text import decode_text
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.read.index import END_OF_TIME_MS
from store_core.read.records import read_message, read_store_timestamp_ms
from store_core.scan.frames import FrameTable
from store_core.scan.log import Progress, scan_log
from store_core.storage.store import Store

# Segments whose messages are this much older than asked for are not read: brokers' clocks may be set back a little.
_CLOCK_SLACK_MS: Final = 3_600_000
_KINDS: Final = {
    FrameKind.BLANK: "blank",
    FrameKind.DAMAGE: "damage",
    FrameKind.ZEROS: "zeros",
    FrameKind.STALE: "stale",
    FrameKind.HOLE: "hole",
}


@dataclass(frozen=True, slots=True)
class LogRange:
    """A stretch of the log that is no message. ``code`` is the reason for damage, None for the rest."""

    kind: str
    phy_offset: int
    size_bytes: int
    code: str | None

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "phy_offset": self.phy_offset, "size_bytes": self.size_bytes, "code": self.code}


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which rows: first byte in [from_phy_offset, to_phy_offset), store time in [begin_ms, end_ms], one of the topics
    (any if none is named), one queue id. ``limit`` counts messages; ``with_ranges`` gives what is no message too."""

    from_phy_offset: int | None = None
    to_phy_offset: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    topics: frozenset[str] = frozenset()
    queue_id: int | None = None
    limit: int | None = None
    with_ranges: bool = False

    def rows(self, table: FrameTable) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mask of the table's rows that pass."""
        mask = table.messages
        if self.begin_ms is not None or self.end_ms is not None:
            times = table.store_timestamp_ms
            mask &= (times >= (self.begin_ms or 0)) & (
                times <= (END_OF_TIME_MS if self.end_ms is None else self.end_ms)
            )
        if self.queue_id is not None:
            mask &= table.queue_id == self.queue_id
        if self.from_phy_offset is not None:
            mask &= table.phy_offset >= self.from_phy_offset
        if self.topics:
            wanted = [i for i, topic in enumerate(table.topics) if decode_text(bytes(topic)) in self.topics]
            mask &= np.isin(table.topic_id, wanted)
        if self.with_ranges:
            mask |= ~table.messages & (table.phy_offset + table.size_bytes > (self.from_phy_offset or 0))
        return mask

    def covers(self, phy_offset: int, size_bytes: int) -> bool:
        """Whether a stretch of the log lies in the offsets asked for, at least in part."""
        start, end = self.from_phy_offset or 0, self.to_phy_offset
        return phy_offset + max(size_bytes, 1) > start and (end is None or phy_offset < end)


def read_log(
    store: Store,
    wanted: LogFilter,
    *,
    on_table: Callable[[FrameTable], None] | None = None,
    on_progress: Progress | None = None,
) -> Iterator[Message | LogRange]:
    """Rows in log order, streamed. ``on_table`` sees every table that is walked, for findings.

    With a begin time, segments at the front whose messages are an hour or more older are not read. Raises FailedError
    where a segment cannot be read.
    """
    if wanted.limit is not None and wanted.limit <= 0:
        return
    start = max(_walk_from(store, wanted.from_phy_offset or 0), start_for_time(store, wanted.begin_ms))
    left = wanted.limit
    tables = scan_log(store, from_phy_offset=start or None, to_phy_offset=wanted.to_phy_offset, on_progress=on_progress)
    for table in tables:
        if on_table is not None and table.end_phy_offset > (wanted.from_phy_offset or 0):
            on_table(table)
        for row in np.flatnonzero(wanted.rows(table)):
            if table.kind[row] != FrameKind.MESSAGE:
                yield _range(table, int(row))
                continue
            yield table.message(int(row))
            if left is not None:
                left -= 1
                if left == 0:
                    return


def _range(table: FrameTable, row: int) -> LogRange:
    kind = FrameKind(int(table.kind[row]))
    code = FrameCode(int(table.code[row]))
    reason = None if code is FrameCode.OK else code.name.lower()
    return LogRange(_KINDS[kind], int(table.phy_offset[row]), int(table.size_bytes[row]), reason)


def _walk_from(store: Store, phy_offset: int) -> int:
    """The offset itself where a record starts, else the start of its segment: only the walk from there tells what it hits."""
    message = read_message(store.log, phy_offset)
    if message is not None and message.own_phy_offset == phy_offset:
        return phy_offset
    segment = store.log.find(phy_offset)
    return phy_offset if segment is None else segment.phy_offset


def start_for_time(store: Store, begin_ms: int | None) -> int:
    """Start of the last segment in front of which everything is too old; 0 where nothing can be left out."""
    start = 0
    if begin_ms is None:
        return start
    for segment in store.log.segments[1:]:
        first_ms = read_store_timestamp_ms(store.log, segment.phy_offset)
        if first_ms is not None and first_ms > 0:
            if first_ms >= begin_ms - _CLOCK_SLACK_MS:
                break
            start = segment.phy_offset
    return start
