"""How far the delay service has come, told by the log (store behaviour 12.3).

What is delivered stands in the log again, under the topic and queue it was sent to, with its properties as they were: so each
delayed message either has such a copy behind it, or was not delivered. A level goes on at the first that was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np

from store_core.codec.properties import DELAY, REAL_QID, REAL_TOPIC, UNIQ_KEY, parse_properties
from store_core.kernel.codes import SCHEDULE_TOPIC, PropertyFlag
from store_core.layout import marks, paths
from store_core.mend.report.log_map import is_bad
from store_core.scan.frames import FrameTable
from store_core.scan.log import Progress, scan_log
from store_core.storage.store import QueueKey, Store

_DIGEST_SIZE_BYTES: Final = 16


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
    open: set[int] = field(default_factory=set)


@dataclass(slots=True)
class DelayTracker:
    """Sees every table of a walk. Holds the messages not delivered so far: digests, not messages.

    Rows are looped over: they are those of delayed messages alone.
    """

    _levels: dict[int, _Level] = field(default_factory=dict)
    _open: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, table: FrameTable) -> None:
        delayed = table.messages & ((table.property_flags & PropertyFlag.DELAY) != 0)
        if delayed.any():
            for row in np.flatnonzero(delayed & ~is_bad(table)).tolist():
                self._row(table, row)

    def _row(self, table: FrameTable, row: int) -> None:
        properties = parse_properties(table.properties(row))
        if marks.TOMBSTONE_PROPERTY in properties:
            return  # nobody waits for it
        sent_to = (properties.get(REAL_TOPIC), properties.get(REAL_QID))
        topic, queue_id = table.topic(row), int(table.queue_id[row])
        if topic == SCHEDULE_TOPIC and None not in sent_to:
            place = (queue_id + 1, int(table.queue_offset[row]))
            self._level(place[0], table, row).open.add(place[1])
            self._open.setdefault(_digest(table, row, properties), []).append(place)
        elif sent_to == (topic.decode("utf-8", "replace"), str(queue_id)):
            self._delivered(table, row, _digest(table, row, properties))

    def _delivered(self, table: FrameTable, row: int, digest: bytes) -> None:
        """A second copy of one message, as after a crash, has nothing to answer to any more."""
        waiting = self._open.get(digest)
        if not waiting:
            return
        level, queue_offset = waiting.pop(0)
        if not waiting:
            del self._open[digest]
        known = self._level(level, table, row)
        known.open.discard(queue_offset)
        known.delivered += 1
        known.last_delivered = max(known.last_delivered, queue_offset)

    def _level(self, level: int, table: FrameTable, row: int) -> _Level:
        known = self._levels.setdefault(level, _Level())
        known.last_timestamp_ms = max(known.last_timestamp_ms, int(table.store_timestamp_ms[row]))
        return known

    def progress(self, ends: Mapping[int, int]) -> dict[int, DelayLevel]:
        """By level, for those that the log has messages of. ``ends``: the ends of their queues by level."""
        return {
            level: DelayLevel(at, known.delivered, _again(known, at), known.last_timestamp_ms)
            for level, known in sorted(self._levels.items())
            for at in [min(known.open, default=ends.get(level, known.last_delivered + 1))]
        }


def _again(level: _Level, queue_offset: int) -> int:
    waiting = sum(queue_offset <= number <= level.last_delivered for number in level.open)
    return max(level.last_delivered + 1 - queue_offset - waiting, 0)


def _digest(table: FrameTable, row: int, properties: Mapping[str, str]) -> bytes:
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
    return blake2b("\0".join(map(str, told)).encode("utf-8", "replace"), digest_size=_DIGEST_SIZE_BYTES).digest()


def told_delays(
    view: Store, ends: Mapping[QueueKey, int], on_progress: Progress | None = None
) -> dict[int, DelayLevel]:
    """What a log tells. ``ends``: the ends of the queues that follow from it. Raises FailedError where it cannot be read."""
    tracker = DelayTracker()
    for table in scan_log(view, on_progress=on_progress):
        tracker.add(table)
    return tracker.progress({key.queue_id + 1: end for key, end in ends.items() if key.topic == paths.SCHEDULE_TOPIC})
