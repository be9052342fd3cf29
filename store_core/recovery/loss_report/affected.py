"""Find the consumer groups and delay services that a loss affects (store behaviour 12)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from store_core.broker.dispatch import EarlyDelivery
from store_core.layout import paths, timer
from store_core.recovery.loss_report.model import (
    DelayedLoss,
    EarlyDeliveries,
    GroupLoss,
    LostRange,
    Position,
    QueueLoss,
)
from store_core.recovery.prediction.outcome import QueueSpan
from store_core.storage.config_files import ConfigFiles
from store_core.storage.store import QueueKey

Offsets = Mapping[tuple[str, str, int], int]
Spans = Mapping[str, Mapping[int, QueueSpan]]


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
