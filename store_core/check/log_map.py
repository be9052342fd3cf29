"""Record where the log holds records, and find contiguous runs of numbers: a run of any length is one finding."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.report import Findings
from store_core.codec.times import format_time
from store_core.kernel.codes import FrameKind
from store_core.scan.frames import FrameTable
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.storage.store import Store

_PAIRS_AT_ONCE: Final = 1 << 12


def runs_of(mask: NDArray[np.bool_], start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of each run of True, in numbers that count from ``start``."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield start + begin, start + end


def windows_of(runs: Iterable[tuple[int, int]], most: int) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield windows of at most ``most`` numbers over ascending runs: first number, and mask of the numbers in a run."""
    start, parts = 0, list[tuple[int, int]]()
    for begin, stop in runs:
        while begin < stop:
            if parts and begin >= start + most:
                yield start, _mask(start, parts)
                parts = []
            start = start if parts else begin
            parts.append((begin, min(stop, start + most)))
            begin = parts[-1][1]
    if parts:
        yield start, _mask(start, parts)


def _mask(at: int, parts: list[tuple[int, int]]) -> NDArray[np.bool_]:
    mask = np.zeros(parts[-1][1] - at, bool)
    for begin, stop in parts:
        mask[begin - at : stop - at] = True
    return mask


class Intervals:
    """A set of numbers, given mostly in ascending runs and kept as [begin, end) pairs of two 8-byte numbers."""

    def __init__(self) -> None:
        self._begins, self._ends = array("q"), array("q")
        self._merged: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, begin: int, end: int) -> None:
        self._merged = None
        if self._ends and self._ends[-1] == begin:
            self._ends[-1] = end
        else:
            self._begins.append(begin)
            self._ends.append(end)

    def add_numbers(self, numbers: NDArray[Any]) -> None:
        """Add numbers in any order; consecutive ones are kept as runs."""
        if not len(numbers):
            return
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        begins = numbers[np.concatenate([[0], breaks])]
        ends = numbers[np.concatenate([breaks - 1, [len(numbers) - 1]])] + 1
        self.add(int(begins[0]), int(ends[0]))
        self._begins.frombytes(begins[1:].astype(np.int64).tobytes())
        self._ends.frombytes(ends[1:].astype(np.int64).tobytes())

    @property
    def end(self) -> int:
        """The number after the largest; 0 without any."""
        return max(self._ends, default=0)

    def sorted(self) -> Iterator[tuple[int, int]]:
        """Yield disjoint pairs in order."""
        begins, ends = self._disjoint()
        for at in range(0, len(begins), _PAIRS_AT_ONCE):
            part = slice(at, at + _PAIRS_AT_ONCE)
            yield from zip(begins[part].tolist(), ends[part].tolist(), strict=True)

    def missing(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [begin, end) that are not in the set."""
        begins, ends = self._disjoint()
        first, last = int(np.searchsorted(ends, begin, side="right")), int(np.searchsorted(begins, end))
        at = begin
        for start in range(first, last, _PAIRS_AT_ONCE):
            part = slice(start, min(start + _PAIRS_AT_ONCE, last))
            for low, high in zip(begins[part].tolist(), ends[part].tolist(), strict=True):
                if low > at:
                    yield at, low
                at = high
        if at < end:
            yield at, end

    def _disjoint(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._merged is None:
            begins, ends = np.array(self._begins), np.array(self._ends)
            order = np.lexsort((ends, begins))
            begins, ends = begins[order], np.maximum.accumulate(ends[order])
            opens = np.ones(len(begins), bool)
            opens[1:] = begins[1:] > ends[:-1]
            closes = np.append(opens[1:], True) if len(opens) else opens
            self._merged = begins[opens], ends[closes]
        return self._merged


class OffsetRanges:
    """Ranges of the log, given in order, for fast look-ups."""

    def __init__(self) -> None:
        self._begins, self._ends = array("q"), array("q")

    def add(self, begin: int, end: int) -> None:
        self._begins.append(begin)
        self._ends.append(end)

    def add_all(self, begins: NDArray[Any], ends: NDArray[Any]) -> None:
        """Add ranges in order."""
        self._begins.frombytes(begins.astype(np.int64).tobytes())
        self._ends.frombytes(ends.astype(np.int64).tobytes())

    def __contains__(self, phy_offset: int) -> bool:
        return bool(self.contain(np.array([phy_offset]))[0])

    def contain(self, phy_offsets: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the offsets that lie in a range."""
        if not self._begins:
            return np.zeros(len(phy_offsets), bool)
        begins, ends = np.frombuffer(self._begins, np.int64), np.frombuffer(self._ends, np.int64)
        place = np.searchsorted(begins, phy_offsets, side="right") - 1
        inside: NDArray[np.bool_] = (place >= 0) & (phy_offsets < ends[np.maximum(place, 0)])
        return inside


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
