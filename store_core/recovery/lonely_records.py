"""Records of queues that are not there, or not theirs: a byte of their topic or queue id is wrong, and another queue lacks their number.

Where there are no entries to ask, a queue that lacks a number, and one of next to nothing but that number, or in which that number
goes back, in its place in the log, whose name or id differs in one byte, tell what entries would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from store_core.derive.queues import QueueBuilder
from store_core.layout import paths, record
from store_core.recovery.header_repair import Repair
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.offset_ranges import Ranges
from store_core.recovery.reassigned import (
    differing,
    is_sound,
    reassigned,
    record_at,
    topic_at,
    topic_length,
)
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

_FEW: Final = 4  # messages of a queue that damage alone may have made
_MOST_NUMBERS: Final = 1 << 12  # of a gap, and gaps of a queue, that are looked at
_MOST_LONELY: Final = 1 << 16  # more are no damage
_TOPIC: Final = re.compile(paths.TOPIC_NAME)


class LonelyRecord:
    """Records of queues with few messages, and strays of others, by their numbers, to which no entry leads; ``add`` is told of every
    queue."""

    def __init__(self, store: Store, log: SegmentSequence, builder: QueueBuilder) -> None:
        self._store, self._log, self._builder = store, log, builder
        self._keys: list[QueueKey] = []
        self._records: dict[int, list[tuple[QueueKey, int, bool]]] = {}  # whether it is a stray
        self._count = 0

    def add(self, key: QueueKey) -> None:
        """Look at a queue, and remember that there is such."""
        self._keys.append(key)
        few = [(*each, False) for each in self._few(key)] if self._count <= _MOST_LONELY else []
        strays = () if few else self._builder.summary(key).strays
        for number, phy_offset, is_stray in (*few, *((s.queue_offset, s.phy_offset, True) for s in strays)):
            entry = queue_entry_at(self._store, key, number)
            if entry is None or entry[0] != phy_offset:
                self._records.setdefault(number, []).append((key, phy_offset, is_stray))
                self._count += 1

    def repairs(self, closed: Ranges) -> Iterator[Repair]:
        """Those that have a number, and lie in its place, which one other queue of nearly the same name lacks.

        ``closed`` are holes of the log: a number that may have been lost there is no sure sign.
        """
        found: dict[int, list[Repair]] = {}
        for key in self._keys if 0 < self._count <= _MOST_LONELY else ():
            is_large = self._builder.summary(key).messages > _FEW
            for gap in self._gaps(key):
                is_sure = is_large and gap.is_known and not closed.overlap(gap.before, gap.behind)
                for number in range(gap.first, min(gap.end, gap.first + _MOST_NUMBERS)):
                    for other, phy_offset, is_stray in self._records.get(number, ()):
                        if other == key or not gap.before < phy_offset < gap.behind:
                            continue
                        is_wanted = is_sure or (not is_stray and self._cannot_be(other, key, is_large=is_large))
                        if is_wanted and (repair := _as_one_of(self._log, key, number, phy_offset)) is not None:
                            found.setdefault(phy_offset, []).append(repair)
        yield from (repairs[0] for repairs in found.values() if len(repairs) == 1)

    def _few(self, key: QueueKey) -> Iterator[tuple[int, int]]:
        """Numbers and places of a queue's messages, if they are few."""
        summary = self._builder.summary(key)
        number = summary.first_queue_offset
        for first, count in (*summary.gaps, (summary.end_queue_offset, 0)) if summary.messages <= _FEW else ():
            for each in range(number, first):
                yield each, self._place(key, each)
            number = first + count

    def _gaps(self, key: QueueKey) -> Iterator[_Gap]:
        """What a queue lacks between its messages, and one number at each end."""
        summary = self._builder.summary(key)
        first, end = summary.first_queue_offset, summary.end_queue_offset
        for missing, count in islice(summary.gaps, _MOST_NUMBERS):
            behind = missing + count
            yield _Gap(missing, behind, self._place(key, missing - 1), self._place(key, behind), is_known=True)
        if first:
            yield _Gap(first - 1, first, -1, self._place(key, first), is_known=self._log.min_phy_offset == 0)
        yield _Gap(end, end + 1, self._place(key, end - 1), self._log.max_phy_offset, is_known=False)

    def _place(self, key: QueueKey, number: int) -> int:
        phy_offset = self._builder.phy_offset_of(key, number)
        return -1 if phy_offset is None else phy_offset

    def _cannot_be(self, lonely: QueueKey, other: QueueKey, *, is_large: bool) -> bool:
        """Whether a queue lacks what it had to have: a topic's name, or, beside a large one, the messages before its first, or any
        entry, while ``other`` has some."""
        if _TOPIC.fullmatch(lonely.topic) is None:
            return True
        is_begun = self._log.min_phy_offset > 0 or not self._builder.summary(lonely).first_queue_offset
        queues = self._store.queues
        return is_large and (not is_begun or (lonely not in queues and other in queues))


class _Gap(NamedTuple):
    """Numbers [first, end) that a queue lacks, whose records lay between two offsets of the log.

    ``is_known``: there were such, for the queue has messages on both sides, or began in this log.
    """

    first: int
    end: int
    before: int
    behind: int
    is_known: bool


def _as_one_of(log: SegmentSequence, key: QueueKey, number: int, phy_offset: int) -> Repair | None:
    """The record of another queue as one of ``key``, if one byte of its topic or its queue id is all that differs."""
    found = record_at(log, phy_offset)
    if found is None or not is_sound(*found):
        return None
    data, message = found
    own = record.HEAD.field_struct("own_phy_offset").pack
    if differing(own(message.own_phy_offset), own(phy_offset)) > 1:
        return None  # nothing tells that it is here where it belongs
    topic, queue_id = topic_at(message), record.HEAD.field_struct("queue_id").pack
    told = queue_id(message.queue_id) + data[topic : topic + topic_length(message)]
    wanted = queue_id(key.queue_id) + key.topic.encode()
    if len(told) != len(wanted) or differing(told, wanted) != 1:
        return None
    return reassigned(data, message, key, number)
