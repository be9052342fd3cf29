"""Find the consumer groups, delay services and transactions that a loss affects (store behaviour 4.8, 12).

A half message is decided by one of these:

* an op record that names its queue offset
* a commit record that names its offset in the log
* a later copy of it, which the check service appends each time it asks the producer
* a copy in the topic of messages whose producers were asked too often
* progress of the check service after it, of brokers that write no such copy
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from store_core.broker.dispatch import EarlyDelivery
from store_core.codec.properties import (
    FIRST_HALF_NUMBER,
    KEYS,
    PRODUCER_GROUP,
    REAL_TOPIC,
    UNIQ_KEY,
    parse_properties,
    split_keys,
)
from store_core.codec.record import Message
from store_core.layout import paths, timer
from store_core.read.records import read_message
from store_core.read.transactions import HALF, LONGEST_OP_BODY_BYTES, OP, Place, decided_numbers, transaction_rows
from store_core.recovery.loss_report.log_strips import is_bad
from store_core.recovery.loss_report.model import (
    DelayedLoss,
    EarlyDeliveries,
    GroupLoss,
    HalfMessages,
    LostRange,
    OpenHalf,
    Position,
    QueueLoss,
)
from store_core.recovery.prediction.outcome import QueueSpan
from store_core.scan.frames import FrameTable
from store_core.storage.config_files import ConfigFiles
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey

Offsets = Mapping[tuple[str, str, int], int]
Spans = Mapping[str, Mapping[int, QueueSpan]]
_MOST_LOOKED_AT: Final = 100_000  # newest half messages without a decision, which are read one by one
_MOST_LISTED: Final = 1_000


def affected_groups(queues: Sequence[QueueLoss], offsets: Offsets, ends: Spans) -> tuple[GroupLoss, ...]:
    """Return the groups with progress in a queue that loses messages, or after a queue's future end.

    ``offsets``: next queue offset by (group, topic, queue id). ``ends``: the queues after the start or the plan.
    """
    lost = {QueueKey(queue.topic, queue.queue_id): queue.ranges for queue in queues}
    found = []
    for (group, topic, queue_id), offset in sorted(offsets.items()):
        key = QueueKey(topic, queue_id)
        span = ends.get(topic, {}).get(queue_id)
        end = span.max_offset if span is not None else 0 if key in lost else None
        beyond_end = end is not None and offset > end
        if key in lost or beyond_end:
            position, consumed, missed = _position_of(offset, lost.get(key, ()))
            found.append(GroupLoss(group, topic, queue_id, offset, position, consumed, missed, end, beyond_end))
    return tuple(found)


def _position_of(offset: int, ranges: Sequence[LostRange]) -> tuple[Position, int, int]:
    """Return the position of progress among lost ranges, and how many lost messages are before it, and not before it."""
    consumed = sum(_part_before(offset, lost) for lost in ranges)
    missed = sum(lost.messages for lost in ranges) - consumed
    place = bisect_right(ranges, offset, key=lambda lost: lost.first_queue_offset) - 1
    if place >= 0 and offset <= ranges[place].last_queue_offset:
        return "in", consumed, missed
    if not missed:
        return "beyond", consumed, missed
    return ("between" if consumed else "before"), consumed, missed


def _part_before(offset: int, lost: LostRange) -> int:
    numbers = lost.last_queue_offset + 1 - lost.first_queue_offset
    return min(max(offset - lost.first_queue_offset, 0), numbers, lost.messages)


def delayed_losses(queues: Iterable[QueueLoss], config: ConfigFiles) -> tuple[DelayedLoss, ...]:
    """Return the losses of the delay levels and of the timer, with the number of messages not yet delivered."""
    levels = config.delay_levels
    timer_offset = config.timer_check.last_timer_queue_offset if config.timer_check is not None else 0
    found = []
    for queue in queues:
        if queue.topic == paths.SCHEDULE_TOPIC:
            level = queue.queue_id + 1
            waiting = _position_of(levels.get(level, 0), queue.ranges)[2]
            found.append(DelayedLoss(queue.topic, queue.queue_id, level, queue.messages, waiting))
        elif queue.topic == timer.TIMER_TOPIC:
            waiting = _position_of(timer_offset, queue.ranges)[2]
            found.append(DelayedLoss(queue.topic, queue.queue_id, None, queue.messages, waiting))
    return tuple(found)


def early_deliveries(early: Iterable[EarlyDelivery]) -> tuple[EarlyDeliveries, ...]:
    """Count the delayed messages that a broker delivers at once, by destination topic."""
    return tuple(EarlyDeliveries(topic, count) for topic, count in sorted(Counter(e.topic for e in early).items()))


@dataclass(slots=True)
class HalfTracker:
    """Collects half messages without a decision from all tables of a walk, up to ``end_phy_offset``.

    Decisions follow their half messages closely, so few are held at a time. Rows are looped over, because each can change
    the result of the next; they are only those of transactions.
    """

    end_phy_offset: int | None = None
    _open: dict[Place, int] = field(default_factory=dict)
    _by_phy_offset: dict[int, Place] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)

    def add(self, table: FrameTable) -> None:
        good = table.messages & ~is_bad(table)
        if self.end_phy_offset is not None:
            good &= table.phy_offset < self.end_phy_offset
        for row, topic in transaction_rows(table, good):
            self._row(table, row, topic)

    def _row(self, table: FrameTable, row: int, topic: bytes | None) -> None:
        queue_id = int(table.queue_id[row])
        if topic is None:
            self._decide_at(int(table.prepared_transaction_offset[row]))
        elif topic == HALF:
            place, phy_offset = (queue_id, int(table.queue_offset[row])), int(table.phy_offset[row])
            self._open[place] = phy_offset
            self._by_phy_offset[phy_offset] = place
        elif topic == OP:
            if int(table.body_length[row]) <= LONGEST_OP_BODY_BYTES:
                for number in decided_numbers(table.body(row)):
                    self._decide((queue_id, number))
        elif len(self._given_up) < _MOST_LOOKED_AT:
            self._given_up.add(parse_properties(table.properties(row)).get(UNIQ_KEY, ""))

    def _decide(self, place: Place) -> None:
        if (phy_offset := self._open.pop(place, None)) is not None:
            self._by_phy_offset.pop(phy_offset, None)

    def _decide_at(self, phy_offset: int) -> None:
        if (place := self._by_phy_offset.pop(phy_offset, None)) is not None:
            self._open.pop(place, None)

    def undecided(self, log: SegmentSequence) -> dict[Place, Message]:
        """Return the half messages without a decision, in log order; of several copies the newest."""
        found: dict[Place, Message] = {}
        by_key: dict[str, Place] = {}
        for place, phy_offset in sorted(self._open.items(), key=lambda item: item[1])[-_MOST_LOOKED_AT:]:
            message = read_message(log, phy_offset)
            if message is None:
                continue
            key = message.properties.get(UNIQ_KEY, "")
            if key and key in self._given_up:
                continue
            if key and key in by_key:
                found.pop(by_key[key], None)
            if (first := _number(message.properties.get(FIRST_HALF_NUMBER))) is not None and first != place[1]:
                found.pop((place[0], first), None)
            by_key[key] = place
            found[place] = message
        return found


def still_open(undecided: Mapping[Place, Message], progress: Mapping[int, int]) -> frozenset[Place]:
    """Return the undecided half messages that are not before the check service's progress."""
    return frozenset(place for place in undecided if place[1] >= progress.get(place[0], 0))


def half_messages(
    undecided: Mapping[Place, Message],
    open_now: frozenset[Place],
    passed: frozenset[Place],
    progress: Mapping[int, int],
    *,
    lost_messages: int,
    lost_operations: int,
) -> HalfMessages:
    """Count half messages after the loss. ``open_now``: open in the present log. ``passed``: before the check's progress."""
    found = [(place, message) for place, message in undecided.items() if place not in passed]
    listed = tuple(
        OpenHalf(
            place[0],
            place[1],
            message.phy_offset,
            message.store_timestamp_ms,
            message.properties.get(REAL_TOPIC, ""),
            message.properties.get(PRODUCER_GROUP, ""),
            message.properties.get(UNIQ_KEY, ""),
            tuple(split_keys(message.properties.get(KEYS))),
            decision_lost=place not in open_now,
            call_again=place[1] >= progress.get(place[0], 0),
        )
        for place, message in found[:_MOST_LISTED]
    )
    lost = sum(place not in open_now for place, _ in found)
    return HalfMessages(len(found), lost, lost_messages, lost_operations, listed)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
