"""Keep the rows that starts dispatched from ranges of the log, so that the next start reuses them.

Every release makes the same rows of a sane record, so the log is read once for all releases. A start also keeps its own rows
this way, because a queue takes many of them in the time of one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from store_core.closing import Closing
from store_core.derive.spool import RUN_ROWS, PackedRows, Run
from store_core.kernel.codes import PropertyFlag
from store_core.kernel.derive import ROW, dispatch_rows
from store_core.layout import paths, record

if TYPE_CHECKING:
    from store_core.broker.record_check import CheckRules
    from store_core.scan.frames import FrameTable, Ints

STRETCH_BYTES: Final = 64 << 20
_V6_HOSTS: Final = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6
_SCHEDULE_TOPIC: Final = paths.SCHEDULE_TOPIC.encode()

RawKey = tuple[bytes, int]  # a topic as stored, a queue id


class IndexKeys(NamedTuple):
    """The count of index keys of some records, with start and store time of the last record that has keys."""

    entries: int = 0
    phy_offset: int = -1
    store_timestamp_ms: int = 0

    def concat(self, behind: IndexKeys) -> IndexKeys:
        """Return these keys with those of records after them."""
        return behind._replace(entries=self.entries + behind.entries) if behind.entries else self

    def merge(self, other: IndexKeys) -> IndexKeys:
        """Return these keys with other keys of the same records."""
        later = max(self, other, key=lambda keys: keys.phy_offset)
        return later._replace(entries=self.entries + other.entries)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of adjacent records.

    ``old_format``: the oldest releases can read all of them. ``knows_delays``: some rows have delivery times instead of a hash
    of tags. ``tags``: the further index keys of releases that also index tags.
    """

    start: int
    end: int
    old_format: bool
    knows_delays: bool
    keys: IndexKeys
    tags: IndexKeys

    def all_keys(self, *, with_tags: bool) -> IndexKeys:
        return self.keys.merge(self.tags) if with_tags else self.keys

    def accepts(self, check: CheckRules, *, knows_delays: bool) -> bool:
        """Return True if a start with these checks makes the same rows of the range."""
        reads = self.old_format or (check.reads_v2 and check.reads_v6_hosts)
        return reads and not check.verify_property_crc and (knows_delays or not self.knows_delays)

    def goes_on_with(self, behind: Stretch) -> bool:
        """Return True if ``behind`` follows this range and has the same properties."""
        is_like = self.old_format == behind.old_format and self.knows_delays == behind.knows_delays
        return is_like and self.end == behind.start

    def with_more(self, behind: Stretch) -> Stretch:
        keys, tags = self.keys.concat(behind.keys), self.tags.concat(behind.tags)
        return replace(self, end=behind.end, keys=keys, tags=tags)


class _Span(NamedTuple):
    """A run of the scratch file, and the range of the log with its records."""

    start: int
    end: int
    run: Run


@dataclass(slots=True)
class DispatchedRows(Closing):
    """Rows by queue, of ranges that do not overlap; those that exceed memory are in a scratch file in ``folder``.

    A context manager, whose end removes the file.

    Raises:
        FailedError: the file cannot take more.
    """

    folder: Path | None = None
    _keys: dict[RawKey, int] = field(default_factory=dict)
    _stretches: list[Stretch] = field(default_factory=list)  # in the order of their places
    _waiting: list[tuple[Ints, Ints, Stretch]] = field(default_factory=list)  # rows and key ids, in the order of places
    _waiting_rows: int = 0
    _waiting_from: int = 0
    _waiting_to: int = 0
    _runs: list[_Span] = field(default_factory=list)  # in the order of their places, none within another
    _packed: PackedRows | None = None

    def close(self) -> None:
        """Discard all rows."""
        if self._packed is not None:
            self._packed.close()
        self._packed = None
        for kept in (self._keys, self._stretches, self._waiting, self._runs):
            kept.clear()
        self._waiting_rows = self._waiting_to = 0

    def add(self, table: FrameTable, tags: Ints, *, knows_delays: bool) -> Stretch | None:
        """Keep a table of accepted records and return its range, or None if a record is odd or already kept.

        ``tags``: the tags codes of their queue entries. The range has the keys only of a walk without the index keys of tags.
        """
        stretch = _stretch_of(table, knows_delays=knows_delays)
        if stretch is None or self._lies_in_a_run(stretch) or not self._insert(stretch):
            return None
        zeros = np.zeros(len(table), np.uint8)  # messages with nothing wrong
        _, numbers, pairs, rows = dispatch_rows(
            zeros,
            zeros,
            table.sys_flag,
            table.topic_id,
            table.queue_id,
            table.queue_offset,
            table.phy_offset,
            tags,
            table.store_timestamp_ms,
            table.size_bytes,
            True,
        )
        if len(numbers):
            ids = [self._keys.setdefault((table.topics[t], q), len(self._keys)) for t, q in pairs]
            if not self._may_wait_with(stretch):
                self._flush()
            if not self._waiting:
                self._waiting_from = stretch.start
            self._waiting.append((rows, np.array(ids, np.int32)[numbers], stretch))
            self._waiting_rows += len(numbers)
            self._waiting_to = stretch.end
            if self._waiting_rows >= RUN_ROWS:
                self._flush()
        return stretch

    def at(self, phy_offset: int) -> Stretch | None:
        """Return the range that starts at ``phy_offset``, or None."""
        place = bisect_left(self._stretches, phy_offset, key=lambda stretch: stretch.start)
        found = self._stretches[place] if place < len(self._stretches) else None
        return found if found is not None and found.start == phy_offset else None

    def has_none_between(self, start: int, end: int) -> bool:
        """Return True if no record that is kept lies in [start, end)."""
        place = bisect_left(self._stretches, end, key=lambda stretch: stretch.start)
        return start == end or place == 0 or self._stretches[place - 1].end <= start

    def rows(self, start: int, end: int) -> Iterator[tuple[RawKey, Ints]]:
        """Yield the rows of records of [start, end), ROW[n], queue by queue, those of a queue in the log's order."""
        if self._runs and self._waiting_from < self._runs[-1].start:
            self._flush()
        runs = Run.all_of([span.run for span in self._runs if span.start < end and span.end > start])
        waiting = [(rows, ids) for rows, ids, place in self._waiting if place.start < end and place.end > start]
        rows = np.concatenate([rows for rows, _ in waiting]).view(ROW) if waiting else np.empty(0, ROW)
        ids = np.concatenate([ids for _, ids in waiting]) if waiting else np.empty(0, np.int32)
        order = np.argsort(ids, kind="stable")
        keys = list(self._keys)
        for key_id in np.union1d(runs.key_id, ids).astype(np.int64).tolist():
            key = keys[key_id]
            for part in self._packed.read(runs.of(key_id)) if self._packed is not None else ():
                yield from _within(key, part, start, end)
            low, high = np.searchsorted(ids, (key_id, key_id + 1), sorter=order)
            yield from _within(key, rows[order[low:high]], start, end)

    def _lies_in_a_run(self, stretch: Stretch) -> bool:
        """Return True if the range overlaps the span of a run or of the waiting rows."""
        place = bisect_left(self._runs, stretch.end, key=lambda run: run.start)
        waits_there = bool(self._waiting) and self._waiting_from < stretch.end and stretch.start < self._waiting_to
        return waits_there or (place > 0 and self._runs[place - 1].end > stretch.start)

    def _may_wait_with(self, stretch: Stretch) -> bool:
        """Return True if the range is after all waiting rows, with no run between them."""
        place = bisect_right(self._runs, self._waiting_from, key=lambda run: run.start)
        is_between = place < len(self._runs) and self._runs[place].start < stretch.start
        return stretch.start >= self._waiting_to and not is_between

    def _insert(self, stretch: Stretch) -> bool:
        """Add a range, if possible to the range before it; return False if it overlaps another range."""
        place = bisect_right(self._stretches, stretch.start, key=lambda known: known.start)
        before = self._stretches[place - 1] if place else None
        if before is not None and before.end > stretch.start:
            return False
        if place < len(self._stretches) and self._stretches[place].start < stretch.end:
            return False
        if before is not None and before.goes_on_with(stretch) and before.end - before.start < STRETCH_BYTES:
            self._stretches[place - 1] = before.with_more(stretch)
        else:
            self._stretches.insert(place, stretch)
        return True

    def _flush(self) -> None:
        """Write the waiting rows as a run of the scratch file."""
        if not self._waiting:
            return
        parts, ids, _ = zip(*self._waiting, strict=True)
        if self._packed is None:
            self._packed = PackedRows(self.folder)
        span = _Span(self._waiting_from, self._waiting_to, self._packed.write(parts, ids, len(self._keys)))
        insort(self._runs, span, key=lambda span: span.start)
        self._waiting.clear()
        self._waiting_rows = 0


def _within(key: RawKey, rows: Ints, start: int, end: int) -> Iterator[tuple[RawKey, Ints]]:
    low, high = np.searchsorted(rows["phy_offset"], (start, end))
    if low < high:
        yield key, rows[low:high]


def _stretch_of(table: FrameTable, *, knows_delays: bool) -> Stretch | None:
    """Return the range of a table if each record has one row, made from its columns alone; else None."""
    if not len(table) or not table.is_good or (table.topic_id < 0).any():
        return None
    if table.any_has(PropertyFlag.INNER_MULTI_DISPATCH | PropertyFlag.PARTED_VALUE):
        return None
    has_delays = _SCHEDULE_TOPIC in table.topics
    if has_delays and not knows_delays:
        return None
    ends = table.phy_offset + table.size_bytes
    if (table.own_phy_offset != table.phy_offset).any() or (ends[:-1] != table.phy_offset[1:]).any():
        return None
    is_old = bool((table.magic == record.MAGIC_V1).all()) and not bool((table.sys_flag & _V6_HOSTS).any())
    indexed = (table.sys_flag & record.TRANSACTION_MASK) != record.TRANSACTION_ROLLBACK
    tagged = np.flatnonzero(indexed & table.with_property(PropertyFlag.TAGS))
    keys, tags = _index_keys(table, table.key_row), _index_keys(table, tagged)
    return Stretch(int(table.phy_offset[0]), int(ends[-1]), is_old, has_delays, keys, tags)


def _index_keys(table: FrameTable, rows: Ints) -> IndexKeys:
    if not len(rows):
        return IndexKeys()
    last = int(rows[-1])
    return IndexKeys(len(rows), int(table.phy_offset[last]), int(table.store_timestamp_ms[last]))
