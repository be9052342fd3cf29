"""Rows of the log: messages by offset or time range, and on request what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from store_core.codec.record import Message
from store_core.codec.text import decode_text
from store_core.errors import UnreadableError
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.read.content import ContentFilter
from store_core.read.index import END_OF_TIME_MS
from store_core.read.records import read_message, read_size_bytes, read_store_timestamp_ms
from store_core.scan.frames import FrameTable, Ints
from store_core.scan.log import Progress, ScanOptions, scan_log
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

# A store time may lie so much in front of that of the segment's first message: brokers' clocks may be set back a little.
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
    (any if none is named), one queue id, and what the message says. ``limit`` counts messages; ``with_ranges`` gives what
    is no message too."""

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
        """Mask of the table's messages that pass."""
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
        """Mask of the rows that lie, at least in part, in the offsets and times asked for.

        ``before_ms`` and ``behind_ms`` are the store times of the messages around each row.
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
    """Rows in log order, streamed. ``messages`` makes them of the messages at some rows of a table. ``on_table`` sees every table
    that is walked, for findings: what was not asked for looks blameless there.

    With a begin time, segments at the front whose messages are an hour or more older are not read. Raises FailedError
    where a segment cannot be read.
    """
    if wanted.limit is not None and wanted.limit <= 0:
        return
    left = wanted.limit
    start = _start_of_walk(store, wanted)
    tables = scan_log(
        store,
        from_phy_offset=start or None,
        to_phy_offset=wanted.to_phy_offset,
        options=ScanOptions(check_property_crc=True),
        on_progress=on_progress,
    )
    around = _Around()
    for table in tables:
        if not len(table):
            continue
        asked, is_message = wanted.rows(table), table.messages
        asked = np.where(is_message, asked, wanted.ranges(table, *around.times(table)))
        if left is not None and not wanted.content:
            left -= len(found := np.flatnonzero(asked & is_message)[:left])
            if left == 0:
                asked[found[-1] + 1 :] = False
        if on_table is not None:
            on_table(_blameless(table, ~asked))
        rows = np.flatnonzero(asked if wanted.with_ranges else asked & is_message)
        if wanted.content:
            rows, left = _passing(table, rows, is_message, wanted.content, left)
        for some in np.split(rows, np.flatnonzero(np.diff(is_message[rows])) + 1):
            if len(some):
                yield from (
                    messages(table, some) if is_message[some[0]] else (_range(table, row) for row in some.tolist())
                )
        if left == 0:
            return


def _passing(
    table: FrameTable, rows: Ints, is_message: Ints, content: ContentFilter, most: int | None
) -> tuple[Ints, int | None]:
    """Those of some rows that are no messages, or whose message passes, up to ``most`` messages; and how many are left of these."""
    passing: list[int] = []
    for row in rows.tolist():
        if is_message[row]:
            if not content.matches(table.message(row)):
                continue
            most = None if most is None else most - 1
        passing.append(row)
        if most == 0:
            break
    return np.array(passing, np.int64), most


def size_of_walk(store: Store, wanted: LogFilter) -> int:
    """How many bytes of the log are walked for these rows, where no limit ends it earlier."""
    start = _start_of_walk(store, wanted)
    ends = (min(s.end_phy_offset, wanted.to_phy_offset or s.end_phy_offset) for s in store.log.segments)
    return sum(max(end - max(s.phy_offset, start), 0) for s, end in zip(store.log.segments, ends, strict=True))


def _start_of_walk(store: Store, wanted: LogFilter) -> int:
    return max(_walk_from(store, wanted.from_phy_offset or 0), start_for_time(store, wanted.begin_ms))


def has_message_after(store: Store, phy_offset: int) -> bool:
    """Whether the log goes on at an offset: what is damaged in front of it is then no torn tail. What cannot be read is more of it."""
    try:
        return any(table.messages.any() for table in scan_log(store, from_phy_offset=phy_offset))
    except UnreadableError:
        return True


class _Around:
    """The store times of the messages around what is no message, from table to table."""

    def __init__(self) -> None:
        self._last_ms = 0

    def times(self, table: FrameTable) -> tuple[Ints, Ints]:
        """For each row the store time of the last message up to it and of the next; 0 and the end of time if not known."""
        number = np.arange(len(table))
        before = np.maximum.accumulate(np.where(table.messages, number, -1))
        behind = np.minimum.accumulate(np.where(table.messages, number, len(table))[::-1])[::-1]
        times = np.concatenate([table.store_timestamp_ms, [END_OF_TIME_MS, self._last_ms]])  # -1 is the last element
        found = times[before], times[behind]
        self._last_ms = int(found[0][-1])
        return found


def _blameless(table: FrameTable, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> FrameTable:
    """A table whose rows in a mask are good messages and blanks."""
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
    """The offset itself where a record starts, else the start of its segment: only the walk from there tells what it hits."""
    message = read_message(store.log, phy_offset)
    if message is not None and message.own_phy_offset == phy_offset:
        return phy_offset
    segment = store.log.find(phy_offset)
    return phy_offset if segment is None else segment.phy_offset


def start_for_time(store: Store, begin_ms: int | None) -> int:
    """Start of the last segment in front of which everything is too old; 0 where nothing can be left out.

    Times have no checksum: nothing is left out where those of the segments go back, and none for what one record says alone.
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
    """Store time of the record at an offset, if the one behind it says the same, give or take ``CLOCK_SLACK_MS``."""
    first_ms = read_store_timestamp_ms(log, phy_offset)
    size_bytes = read_size_bytes(log, phy_offset)
    if first_ms is None or size_bytes is None:
        return None
    second_ms = read_store_timestamp_ms(log, phy_offset + size_bytes)
    return first_ms if second_ms is not None and abs(second_ms - first_ms) <= CLOCK_SLACK_MS else None
