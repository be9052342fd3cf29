"""Decide which delayed messages are not delivered yet, from the stored progress of the delivering services (store behaviour 12.3, 12.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from store_core.codec.properties import TIMER_OUT_MS
from store_core.codec.record import Message
from store_core.read.timer import timer_log, timer_units
from store_core.storage.config_files import ConfigFiles, TimerCheck
from store_core.storage.store import Store

_MOST_ROLLED: Final = 1 << 20
_MOST_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """The progress of the delay levels and of the timer.

    ``rolled``: by phy_offset, the time at which the timer puts a far message into its topic again.
    """

    levels: Mapping[int, int]
    check: TimerCheck | None
    rolled: Mapping[int, int] = field(default_factory=dict)

    def level_waits(self, queue_id: int, queue_offset: int) -> bool:
        """Return True if the message at this place of a delay queue is still to be delivered."""
        return queue_offset >= self.levels.get(queue_id + 1, 0)

    def timer_waits(self, queue_offset: int, phy_offset: int, due_ms: int | None) -> bool:
        """Return True if the message at this place of the timer's queue is still to be delivered; ``due_ms`` as from ``timer_due_ms``."""
        if self.check is None or queue_offset >= self.check.last_timer_queue_offset:
            return True
        until_ms = self.rolled.get(phy_offset, due_ms)
        return until_ms is not None and until_ms >= self.check.last_read_timestamp_ms


def delivery_progress(store: Store, config: ConfigFiles) -> DeliveryProgress:
    """Return the progress of a store's delay levels and timer. Raises FailedError where the timer's log cannot be read."""
    rolled: dict[int, int] = {}
    if config.timer_check is not None:
        for unit in timer_units(timer_log(store)):
            if unit.is_roll and len(rolled) < _MOST_ROLLED:
                rolled[unit.phy_offset] = unit.delivery_timestamp_ms
    return DeliveryProgress(config.delay_levels, config.timer_check, rolled)


def timer_due_ms(message: Message) -> int | None:
    """Return when a message of the timer's topic is due, in ms; None where it has no valid time."""
    text = message.properties.get(TIMER_OUT_MS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
