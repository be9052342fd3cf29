"""Find offsets and store times of lost messages: from entries, their own records, or the nearest known messages."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.text import decode_text
from store_core.kernel.codes import FrameKind
from store_core.layout import queue, record
from store_core.recovery.loss_report.log_strips import is_bad
from store_core.recovery.loss_report.model import TimeSpan
from store_core.recovery.lost_record import LostRun
from store_core.scan.frames import FrameTable
from store_core.storage.store import QueueKey, Store

Ints = NDArray[np.int64]
_CHUNK_ENTRIES: Final = 1 << 16
_MOST_HELD: Final = 1 << 18
Mask = NDArray[np.bool_]
_NONE: Final = -1
_LATEST: Final = np.iinfo(np.int64).max


@dataclass(slots=True)
class Places:
    """A set of ranges of the log. Adjoining ranges are merged when many are held, which bounds memory."""

    _starts: list[Ints] = field(default_factory=list)
    _ends: list[Ints] = field(default_factory=list)
    _held: int = 0

    def add(self, starts: Ints, sizes: Ints) -> None:
        self._starts.append(starts.astype(np.int64))
        self._ends.append(starts.astype(np.int64) + sizes)
        self._held += len(starts)
        if self._held > _MOST_HELD:
            merged = self.merged()
            self._starts, self._ends = [merged[0]], [merged[1]]
            self._held = len(merged[0]) // 2  # so that ranges that do not merge are not tried at every call

    def merged(self) -> tuple[Ints, Ints]:
        """Return (starts, ends) in log order, of ranges that do not touch each other."""
        empty = np.zeros(0, np.int64)
        starts, ends = np.concatenate([*self._starts, empty]), np.concatenate([*self._ends, empty])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        first = np.r_[True, starts[1:] > ends[:-1]] if len(starts) else np.zeros(0, bool)
        last = np.r_[first[1:], True] if len(starts) else first
        return starts[first], ends[last]


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Offsets in the log of a run's first and last record."""

    first_phy_offset: int
    last_phy_offset: int


def places_of(store: Store, runs: Iterable[LostRun], places: Places) -> dict[LostRun, RunPlace]:
    """Return the place of each run's records by its queue entries, and add their ranges to ``places``.

    Runs without a remaining entry are left out, and those of batch queues, whose entries are not found by queue offset.
    """
    found = {}
    for run in runs:
        if run.topic is None or run.queue_id is None or run.first_queue_offset is None or run.last_queue_offset is None:
            continue
        files = store.queue(run.topic, run.queue_id)
        if files is None:
            continue
        low, high = None, None
        for first in range(run.first_queue_offset, run.last_queue_offset + 1, _CHUNK_ENTRIES):
            count = min(_CHUNK_ENTRIES, run.last_queue_offset + 1 - first)
            data = files.read(first * queue.ENTRY.size_bytes, count * queue.ENTRY.size_bytes)
            entries = np.frombuffer(data, queue.ENTRY.dtype, len(data) // queue.ENTRY.size_bytes)
            starts, sizes = entries["phy_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
            real = (sizes >= record.MIN_RECORD_SIZE_BYTES) & (sizes <= record.MAX_RECORD_SIZE_BYTES) & (starts >= 0)
            if not real.any():
                continue
            places.add(starts[real], sizes[real])
            low = int(starts[real][0]) if low is None else low
            high = int(starts[real][-1])
        if low is not None and high is not None:
            found[run] = RunPlace(low, high)
    return found


class _QueueRuns:
    """Lost runs of a queue with the times that a walk found: columns with one element for each run.

    ``low`` and ``high`` are the first and last store time of the runs' own records, in ms; ``before`` and ``after`` the
    store times of the nearest good messages of the queue, whose queue offsets are ``before_number`` and ``after_number``.
    """

    def __init__(self, runs: Sequence[LostRun]) -> None:
        self.runs = sorted(runs, key=lambda run: run.first_queue_offset or 0)
        self.first = np.array([run.first_queue_offset for run in self.runs], np.int64)
        self.last = np.array([run.last_queue_offset for run in self.runs], np.int64)
        count = len(self.runs)
        self.low, self.high = np.full(count, _LATEST), np.full(count, _NONE, np.int64)
        self.before_number, self.before = np.full(count, _NONE, np.int64), np.full(count, _NONE, np.int64)
        self.after_number, self.after = np.full(count, _LATEST), np.full(count, _NONE, np.int64)

    def holds(self, numbers: Ints) -> tuple[Ints, Mask]:
        """Return the index of the run at or before each queue offset, and a mask of the offsets inside their run."""
        place = np.searchsorted(self.first, numbers, "right") - 1
        return place, (place >= 0) & (numbers <= self.last[np.maximum(place, 0)])

    def add_own(self, place: Ints, times: Ints) -> None:
        np.minimum.at(self.low, place, times)
        np.maximum.at(self.high, place, times)

    def add_neighbours(self, numbers: Ints, times: Ints) -> None:
        order = np.argsort(numbers, kind="stable")
        numbers, times = numbers[order], times[order]
        place = np.searchsorted(numbers, self.first, "left") - 1
        nearer = (place >= 0) & (numbers[np.maximum(place, 0)] >= self.before_number)
        self.before_number[nearer], self.before[nearer] = numbers[place[nearer]], times[place[nearer]]
        place = np.searchsorted(numbers, self.last, "right")
        inside = np.minimum(place, len(numbers) - 1)
        nearer = (place < len(numbers)) & (numbers[inside] < self.after_number)
        self.after_number[nearer], self.after[nearer] = numbers[place[nearer]], times[place[nearer]]


class RunTimes:
    """Collects the store times of lost runs from all tables of a walk.

    ``is_own(table)`` masks the messages that may be lost ones themselves; their ranges are added to ``places``. With
    ``neighbours`` the nearest good messages of the same queue are kept too. Memory grows only with the number of runs.
    """

    def __init__(
        self,
        runs: Iterable[LostRun],
        is_own: Callable[[FrameTable], Mask],
        *,
        neighbours: bool = False,
        places: Places | None = None,
    ) -> None:
        by_queue: dict[QueueKey, list[LostRun]] = {}
        for run in runs:
            if run.topic is not None and run.queue_id is not None and run.first_queue_offset is not None:
                by_queue.setdefault(QueueKey(run.topic, run.queue_id), []).append(run)
        self._queues = {key: _QueueRuns(found) for key, found in by_queue.items()}
        self._topics = {key.topic for key in self._queues}
        self._is_own = is_own
        self._neighbours = neighbours
        self._places = places

    def add(self, table: FrameTable) -> None:
        names = {number: decode_text(topic) for number, topic in enumerate(table.topics)} if self._queues else {}
        wanted = [number for number, name in names.items() if name in self._topics]
        if not wanted:
            return
        kind = table.sys_flag & record.TRANSACTION_MASK
        queued = table.messages & ((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT))
        rows = np.flatnonzero(queued & np.isin(table.topic_id, wanted))
        group = (table.topic_id[rows].astype(np.int64) << 32) + table.queue_id[rows]
        order = np.argsort(group, kind="stable")
        rows, group = rows[order], group[order]
        own, bad = self._is_own(table), is_bad(table)
        for part in np.split(rows, np.flatnonzero(np.diff(group)) + 1):
            if not len(part):
                continue
            key = QueueKey(names[int(table.topic_id[part[0]])], int(table.queue_id[part[0]]))
            if key in self._queues:
                self._add_rows(self._queues[key], table, part, own[part], bad[part])

    def _add_rows(self, runs: _QueueRuns, table: FrameTable, rows: Ints, own: Mask, bad: Mask) -> None:
        numbers, times = table.queue_offset[rows], table.store_timestamp_ms[rows]
        place, inside = runs.holds(numbers)
        own_inside = inside & own
        runs.add_own(place[own_inside], times[own_inside])
        if self._places is not None and own_inside.any():
            self._places.add(table.phy_offset[rows[own_inside]], table.size_bytes[rows[own_inside]])
        good = ~inside & ~bad
        if self._neighbours and good.any():
            runs.add_neighbours(numbers[good], times[good])

    def own_spans(self) -> dict[LostRun, TimeSpan]:
        """Return the times of the runs of which the walk found own records."""
        return {
            run: TimeSpan(int(queue.low[i]), int(queue.high[i]), "records")
            for queue in self._queues.values()
            for i, run in enumerate(queue.runs)
            if queue.high[i] != _NONE
        }

    def between_neighbours(self) -> dict[LostRun, TimeSpan]:
        """Return for every run the times of the nearest good messages of its queue."""
        return {
            run: between(int(queue.before[i]), int(queue.after[i]))
            for queue in self._queues.values()
            for i, run in enumerate(queue.runs)
        }


def between(before: int, after: int) -> TimeSpan:
    """Return the span between two store times in ms; a negative time is unknown."""
    first, last = (before if before >= 0 else None), (after if after >= 0 else None)
    if first is not None and last is not None and last < first:  # a clock was set back
        first, last = last, first
    return TimeSpan(first, last, "neighbours" if first is not None or last is not None else None)


class Stretches:
    """Ranges of the log without good messages, each with the store times of the good messages around it."""

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")
        self._before, self._after = array("q"), array("q")
        self._open = 0  # the first range after which no good message has come yet
        self._last = _NONE

    def add(self, table: FrameTable) -> None:
        if not len(table):
            return
        good = table.messages & ~is_bad(table)
        bad = ~good & ~table.of_kind(FrameKind.BLANK)
        places, times = np.flatnonzero(good), table.store_timestamp_ms
        if len(places):
            self._close(int(times[places[0]]))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]])))
        for first_row, end_row in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            following = int(np.searchsorted(places, first_row))
            self._starts.append(int(table.phy_offset[first_row]))
            self._ends.append(int(table.phy_offset[end_row - 1] + table.size_bytes[end_row - 1]))
            self._before.append(int(times[places[following - 1]]) if following else self._last)
            self._after.append(_NONE)
            if following < len(places):
                self._close(int(times[places[following]]))
        if len(places):
            self._last = int(times[places[-1]])

    def _close(self, timestamp_ms: int) -> None:
        for number in range(self._open, len(self._after)):
            self._after[number] = timestamp_ms
        self._open = len(self._after)

    def around(self, first_phy_offset: int, last_phy_offset: int) -> TimeSpan:
        """Return the times of the good messages around two log offsets; an empty span if one is in no range."""
        first, last = self._range_at(first_phy_offset), self._range_at(last_phy_offset)
        if first is None or last is None:
            return TimeSpan()
        return between(self._before[first], self._after[last])

    def _range_at(self, phy_offset: int) -> int | None:
        number = bisect_right(self._starts, phy_offset) - 1
        return number if number >= 0 and phy_offset < self._ends[number] else None
