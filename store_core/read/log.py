"""Return rows of the log: messages by offset or time range, and on request the ranges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from store_core.codec.record import Message
from store_core.codec.text import decode_text
from store_core.codec.times import END_OF_TIME_MS
from store_core.errors import UnreadableError
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.read.content import ContentFilter
from store_core.read.records import read_message, read_size_bytes, read_store_timestamp_ms
from store_core.scan.frames import FrameTable, Ints
from store_core.scan.log import Progress, ScanOptions, scan_log
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

# A message's store time may be so much before that of the segment's first message, because a clock may be set back a little.
CLOCK_SLACK_MS: Final = 3_600_000
_KINDS: Final = {
    FrameKind.BLANK: "blank",
    FrameKind.DAMAGE: "damage",
    FrameKind.ZEROS: "zeros",
    FrameKind.STALE: "stale",
    FrameKind.HOLE: "hole",
}


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of the log that is no message. ``code`` is the reason for damage, None for the other kinds."""

    kind: str
    phy_offset: int
    size_bytes: int
    code: str | None

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "phy_offset": self.phy_offset, "size_bytes": self.size_bytes, "code": self.code}


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Conditions on rows of the log; None and an empty set are no condition.

    * The first byte is in [from_phy_offset, to_phy_offset) and the store time in [begin_ms, end_ms].
    * The topic is one of ``topics``, and the queue id and the content match.

    ``limit`` counts messages. ``with_ranges`` returns ranges that are no messages too.
    """

    from_phy_offset: int | None = None
    to_phy_offset: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    topics: frozenset[str] = frozenset()
    queue_id: int | None = None
    limit: int | None = None
    with_ranges: bool = False
    content: ContentFilter = field(default_factory=ContentFilter)

    def rows(self, table: FrameTable) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return a mask of the table's messages that pass."""
        mask = table.messages
        if self.begin_ms is not None:
            mask &= table.store_timestamp_ms >= self.begin_ms
        if self.end_ms is not None:
            mask &= table.store_timestamp_ms <= self.end_ms
        if self.queue_id is not None:
            mask &= table.queue_id == self.queue_id
        if self.from_phy_offset is not None:
            mask &= table.phy_offset >= self.from_phy_offset
        if self.topics:
            wanted = [i for i, topic in enumerate(table.topics) if decode_text(bytes(topic)) in self.topics]
            mask &= np.isin(table.topic_id, wanted)
        return mask

    def ranges(self, table: FrameTable, before_ms: Ints, behind_ms: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return a mask of the rows that overlap the wanted offsets and times.

        ``before_ms`` and ``behind_ms`` are the store times of the messages before and after each row.
        """
        mask = table.phy_offset + table.size_bytes > (self.from_phy_offset or 0)
        if self.begin_ms is not None:
            mask &= behind_ms >= self.begin_ms
        if self.end_ms is not None:
            mask &= before_ms <= self.end_ms
        return np.asarray(mask)


def _messages(table: FrameTable, rows: Ints) -> Iterator[Message]:
    return map(table.message, rows.tolist())


def read_log(
    store: Store,
    wanted: LogFilter,
    *,
    messages: Callable[[FrameTable, Ints], Iterator[Any]] = _messages,
    on_table: Callable[[FrameTable], None] | None = None,
    on_progress: Progress | None = None,
) -> Iterator[Any | LogRange]:
    """Yield rows in log order. ``messages`` converts the messages at some rows of a table.

    ``on_table`` gets every table of the walk for findings; unwanted rows appear in it as good.

    With a start time, the first segments are not read if their messages are more than an hour too old. Raises FailedError where a segment cannot be
    read.
    """
    if wanted.limit is not None and wanted.limit <= 0:
        return
    remaining = wanted.limit
    start = _start_of_walk(store, wanted)
    tables = scan_log(
        store,
        from_phy_offset=start or None,
        to_phy_offset=wanted.to_phy_offset,
        options=ScanOptions(check_property_crc=True),
        on_progress=on_progress,
    )
    neighbours = _NeighbourTimes()
    for table in tables:
        if not len(table):
            continue
        wanted_rows, is_message = wanted.rows(table), table.messages
        wanted_rows = np.where(is_message, wanted_rows, wanted.ranges(table, *neighbours.times(table)))
        if remaining is not None and not wanted.content:
            remaining -= len(found := np.flatnonzero(wanted_rows & is_message)[:remaining])
            if remaining == 0:
                wanted_rows[found[-1] + 1 :] = False
        if on_table is not None:
            on_table(_with_good_rows(table, ~wanted_rows))
        rows = np.flatnonzero(wanted_rows if wanted.with_ranges else wanted_rows & is_message)
        if wanted.content:
            rows, remaining = _passing(table, rows, is_message, wanted.content, remaining)
        for group in np.split(rows, np.flatnonzero(np.diff(is_message[rows])) + 1):
            if len(group):
                yield from (
                    messages(table, group) if is_message[group[0]] else (_range(table, row) for row in group.tolist())
                )
        if remaining == 0:
            return


def _passing(
    table: FrameTable, rows: Ints, is_message: Ints, content: ContentFilter, limit: int | None
) -> tuple[Ints, int | None]:
    """Return the rows of ranges and of passing messages, up to ``limit`` messages, and how many more are wanted."""
    passing: list[int] = []
    for row in rows.tolist():
        if is_message[row]:
            if not content.matches(table.message(row)):
                continue
            limit = None if limit is None else limit - 1
        passing.append(row)
        if limit == 0:
            break
    return np.array(passing, np.int64), limit


def size_of_walk(store: Store, wanted: LogFilter) -> int:
    """Return how many bytes of the log are walked for these rows if no limit ends the walk earlier."""
    start = _start_of_walk(store, wanted)
    ends = (min(s.end_phy_offset, wanted.to_phy_offset or s.end_phy_offset) for s in store.log.segments)
    return sum(max(end - max(s.phy_offset, start), 0) for s, end in zip(store.log.segments, ends, strict=True))


def _start_of_walk(store: Store, wanted: LogFilter) -> int:
    return max(_walk_from(store, wanted.from_phy_offset or 0), start_for_time(store, wanted.begin_ms))


def has_message_after(store: Store, phy_offset: int) -> bool:
    """Return True if a message follows at or after an offset, so that damage before it is no torn tail. An unreadable log counts as True."""
    try:
        return any(table.messages.any() for table in scan_log(store, from_phy_offset=phy_offset))
    except UnreadableError:
        return True


class _NeighbourTimes:
    """The store times of the messages around ranges, carried from table to table."""

    def __init__(self) -> None:
        self._last_ms = 0

    def times(self, table: FrameTable) -> tuple[Ints, Ints]:
        """Return for each row the store times of the last message up to it and of the next; 0 and the end of time if unknown."""
        number = np.arange(len(table))
        before = np.maximum.accumulate(np.where(table.messages, number, -1))
        following = np.minimum.accumulate(np.where(table.messages, number, len(table))[::-1])[::-1]
        times = np.concatenate([table.store_timestamp_ms, [END_OF_TIME_MS, self._last_ms]])  # -1 is the last element
        found = times[before], times[following]
        self._last_ms = int(found[0][-1])
        return found


def _with_good_rows(table: FrameTable, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> FrameTable:
    """Return the table with the rows of a mask changed to good messages and blanks."""
    if not mask.any():
        return table
    kind = np.where(mask & ~table.messages, FrameKind.BLANK, table.kind)
    return replace(table, kind=kind, code=np.where(mask, FrameCode.OK, table.code), odd_count=None)


def _range(table: FrameTable, row: int) -> LogRange:
    kind = FrameKind(int(table.kind[row]))
    code = FrameCode(int(table.code[row]))
    reason = None if code is FrameCode.OK else code.name.lower()
    return LogRange(_KINDS[kind], int(table.phy_offset[row]), int(table.size_bytes[row]), reason)


def _walk_from(store: Store, phy_offset: int) -> int:
    """Return the offset if a record starts there, else the start of its segment.

    Only a walk from the segment's start can find the next record.
    """
    message = read_message(store.log, phy_offset)
    if message is not None and message.own_phy_offset == phy_offset:
        return phy_offset
    segment = store.log.find(phy_offset)
    return phy_offset if segment is None else segment.phy_offset


def start_for_time(store: Store, begin_ms: int | None) -> int:
    """Return the start of the last segment before which every message is too old; 0 where no segment can be skipped.

    Times have no checksum. So no segment is skipped where the segments' times go back, or on the word of a single record.
    """
    too_old: list[int] = []
    last_ms = 0
    if begin_ms is None:
        return 0
    for segment in store.log.segments:
        first_ms = read_store_timestamp_ms(store.log, segment.phy_offset) or 0
        if first_ms <= 0:
            continue
        if first_ms >= begin_ms - CLOCK_SLACK_MS:
            break
        if first_ms < last_ms - CLOCK_SLACK_MS:
            return 0
        last_ms = first_ms
        too_old.append(segment.phy_offset)
    for phy_offset in reversed(too_old):
        if confirmed_store_timestamp_ms(store.log, phy_offset) is not None:
            return phy_offset
    return 0


def confirmed_store_timestamp_ms(log: SegmentSequence, phy_offset: int) -> int | None:
    """Return the store time of the record at an offset if the next record confirms it, else None.

    The two times may differ by at most ``CLOCK_SLACK_MS``.
    """
    first_ms = read_store_timestamp_ms(log, phy_offset)
    size_bytes = read_size_bytes(log, phy_offset)
    if first_ms is None or size_bytes is None:
        return None
    second_ms = read_store_timestamp_ms(log, phy_offset + size_bytes)
    return first_ms if second_ms is not None and abs(second_ms - first_ms) <= CLOCK_SLACK_MS else None
