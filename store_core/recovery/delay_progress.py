"""How far the delay service has come, told by the log (store behaviour 12.3).

What is delivered stands in the log again, under the topic and queue it was sent to, with its properties as they were: so each
delayed message either has such a copy behind it, or was not delivered. A level goes on at the first that was not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.properties import DELAY, REAL_QID, REAL_TOPIC, UNIQ_KEY, parse_properties
from store_core.kernel.codes import SCHEDULE_TOPIC, PropertyFlag
from store_core.layout import marks, paths
from store_core.recovery.loss_report.log_strips import is_bad
from store_core.scan.frames import FrameTable
from store_core.scan.log import Progress, scan_log
from store_core.storage.store import QueueKey, Store

_DIGEST_SIZE_BYTES: Final = 8
_PART_ROWS: Final = 1 << 17
_MOST_HELD: Final = 1 << 19  # messages and copies, besides those that are known to wait
_DELIVERED: Final = (1 << 16) - 1  # in the place of a level


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """A level goes on at ``queue_offset``; ``again`` messages behind it were delivered, and are delivered once more.

    ``last_timestamp_ms``: store time of the last message that went through this level.
    """

    queue_offset: int
    delivered: int
    again: int
    last_timestamp_ms: int


@dataclass(slots=True)
class _Level:
    delivered: int = 0
    last_timestamp_ms: int = 0
    last_delivered: int = -1


@dataclass(slots=True)
class DelayTracker:
    """Sees every table of a walk. Of each message that waits it holds a few bytes: a digest, its level and its number.

    Rows are looped over: they are those of delayed messages alone. What came is held in columns, in log order, and once
    those are long what answers to each other is struck out.
    """

    _levels: list[int] = field(default_factory=list)
    _known: dict[int, _Level] = field(default_factory=dict)
    _digests: array[int] = field(default_factory=lambda: array("Q"))
    _places: array[int] = field(default_factory=lambda: array("H"))  # in _levels; _DELIVERED for a delivered copy
    _numbers: array[int] = field(default_factory=lambda: array("q"))
    _most: int = _MOST_HELD

    def add(self, table: FrameTable) -> None:
        delayed = table.messages & table.with_property(PropertyFlag.DELAY)
        if delayed.any():
            for row in np.flatnonzero(delayed & ~is_bad(table)).tolist():
                self._row(table, row)
            if len(self._digests) > self._most:
                self._strike()
                self._most = len(self._digests) + _MOST_HELD

    def _row(self, table: FrameTable, row: int) -> None:
        properties = parse_properties(table.properties(row))
        if marks.TOMBSTONE_PROPERTY in properties:
            return  # nobody waits for it
        sent_to = (properties.get(REAL_TOPIC), properties.get(REAL_QID))
        topic, queue_id = table.topic(row), int(table.queue_id[row])
        if topic == SCHEDULE_TOPIC and None not in sent_to:
            level = queue_id + 1
            if level not in self._known:
                if len(self._levels) == _DELIVERED:
                    return  # no broker has so many
                self._known[level] = _Level()
                self._levels.append(level)
            known = self._known[level]
            known.last_timestamp_ms = max(known.last_timestamp_ms, int(table.store_timestamp_ms[row]))
            self._came(_digest(table, row, properties), self._levels.index(level), int(table.queue_offset[row]))
        elif sent_to == (topic.decode("utf-8", "replace"), str(queue_id)):
            self._came(_digest(table, row, properties), _DELIVERED, int(table.store_timestamp_ms[row]))

    def _came(self, digest: int, place: int, number: int) -> None:
        self._digests.append(digest)
        self._places.append(place)
        self._numbers.append(number)

    def _strike(self) -> None:
        """Take out what was delivered, with its copy; a copy of what does not wait answers to nothing any more.

        Part by part of the digests, and written anew in parts, so that little more is held than what waits.
        """
        digests, low_bytes = np.frombuffer(self._digests, np.uint64), np.frombuffer(self._digests, np.uint8)[::8]
        places, numbers = np.frombuffer(self._places, np.uint16), np.frombuffer(self._numbers, np.int64)
        gone = places == _DELIVERED
        parts = min(len(digests) // _PART_ROWS + 1, 256)
        for part in range(parts):
            rows = np.flatnonzero(low_bytes % parts == part)
            for waiting, copies in _answers(rows, digests[rows], places):
                gone[waiting] = True
                for place in np.unique(places[waiting]).tolist():
                    mine = places[waiting] == place
                    known = self._known[self._levels[place]]
                    known.delivered += int(mine.sum())
                    known.last_delivered = max(known.last_delivered, int(numbers[waiting][mine].max()))
                    known.last_timestamp_ms = max(known.last_timestamp_ms, int(numbers[copies][mine].max()))
        del digests, low_bytes, places, numbers  # each column goes as soon as it is written anew
        self._digests = _without(self._digests, gone)
        self._places = _without(self._places, gone)
        self._numbers = _without(self._numbers, gone)

    def progress(self, ends: Mapping[int, int]) -> dict[int, DelayLevel]:
        """By level, for those that the log has messages of. ``ends``: the ends of their queues by level."""
        self._strike()
        places, numbers = np.frombuffer(self._places, np.uint16), np.frombuffer(self._numbers, np.int64)
        found = {}
        for place, level in sorted(enumerate(self._levels), key=lambda each: each[1]):
            known, waiting = self._known[level], numbers[places == place]
            waiting.sort()
            at = int(waiting[0]) if len(waiting) else ends.get(level, known.last_delivered + 1)
            found[level] = DelayLevel(at, known.delivered, _again(known, at, waiting), known.last_timestamp_ms)
        return found


def _without(column: array[int], gone: NDArray[np.bool_]) -> array[int]:
    left, rows = array(column.typecode), np.frombuffer(column, column.typecode)
    for begin in range(0, len(rows), _PART_ROWS):
        left.frombytes(rows[begin : begin + _PART_ROWS][~gone[begin : begin + _PART_ROWS]].tobytes())
    return left


def _answers(
    rows: NDArray[np.int64], digests: NDArray[np.uint64], places: NDArray[np.uint16]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows that waited and those of the copies that answer to them, all of these digests."""
    if not len(rows):
        return
    order = np.argsort(digests, kind="stable")
    rows, digests = rows[order], digests[order]
    same = digests[1:] == digests[:-1]
    first, last = np.r_[True, ~same], np.r_[~same, True]
    copy = places[rows] == _DELIVERED
    # Nearly all either wait, or have one copy behind them.
    pairs = np.flatnonzero(first[:-1] & same & last[1:] & ~copy[:-1] & copy[1:])
    if len(pairs):
        yield rows[pairs], rows[pairs + 1]
    for begin in np.setdiff1d(np.flatnonzero(first & ~last), pairs).tolist():
        yield _answered(rows[begin : begin + int(np.argmax(last[begin:])) + 1], places)


def _answered(rows: NDArray[np.int64], places: NDArray[np.uint16]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of what has the same digest, in log order: each copy answers to the first that waits."""
    waiting: list[int] = []
    answered: list[tuple[int, int]] = []
    for row in rows.tolist():
        if places[row] != _DELIVERED:
            waiting.append(row)
        elif waiting:
            answered.append((waiting.pop(0), row))
    both = np.array(answered, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _again(level: _Level, queue_offset: int, waiting: NDArray[np.int64]) -> int:
    """``waiting``: numbers, sorted."""
    within = waiting[: int(np.searchsorted(waiting, level.last_delivered, "right"))]
    passed = int(np.count_nonzero(within[1:] != within[:-1])) + 1 if len(within) else 0
    return max(level.last_delivered + 1 - queue_offset - passed, 0)


def _digest(table: FrameTable, row: int, properties: Mapping[str, str]) -> int:
    """What a delayed message and its delivered copy have in common, and no two messages."""
    told: Iterable[object] = (
        properties.get(UNIQ_KEY),
        properties.get(REAL_TOPIC),
        properties.get(REAL_QID),
        properties.get(DELAY),
        table.born_timestamp_ms[row],
        table.reconsume_times[row],
        table.body_crc[row],
        table.body_length[row],
    )
    text = "\0".join(map(str, told)).encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=_DIGEST_SIZE_BYTES).digest(), "big")


def delay_levels_from_log(
    view: Store, ends: Mapping[QueueKey, int], on_progress: Progress | None = None
) -> dict[int, DelayLevel]:
    """What a log tells. ``ends``: the ends of the queues that follow from it. Raises FailedError where it cannot be read."""
    tracker = DelayTracker()
    for table in scan_log(view, on_progress=on_progress):
        tracker.add(table)
    return tracker.progress({key.queue_id + 1: end for key, end in ends.items() if key.topic == paths.SCHEDULE_TOPIC})
